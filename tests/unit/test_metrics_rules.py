"""From lines to numbers (agent/metricrules.py, metricread.py, metricjournal.py): values only, no processes."""

import math
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobrunner.agent import metricjournal, metricread
from jobrunner.agent.metricrules import (
    Rules,
    by_key,
    by_text,
    number,
    object_of,
    plain_line,
    request_rules,
    steps_of,
    time_of,
)

DIGITS = r"loss=([-+.0-9eE]+)"


def text(line: str, **patterns: str) -> dict:
    def fail(name, error):
        raise error

    return by_text(Rules(patterns), plain_line(line), SimpleNamespace(serial=0, busy=False), fail)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("epoch 3 val_loss=1.5e-3, acc=1", 1.5e-3),
        ("loss=0.25.", 0.25),
        ("loss=\x1b[32m7\x1b[0m", 7.0),
        ("loss=nan", math.nan),
        ("loss=-inf acc=1", -math.inf),
        ("loss=Infinity", math.inf),
        ("loss=none", None),
        ("loss=nanny", None),
        ("INFO lossless", None),
    ],
)
def test_a_line_by_expression(line, value):
    found = text(line, loss=DIGITS).get("loss")
    assert found == value or (math.isnan(value) and math.isnan(found))


def test_the_first_group_that_took_part_counts_and_words_are_no_numbers():
    assert text("b=2", m=r"a=(\d)|b=(\d)") == {"m": 2.0}
    assert text("acc: 93.5%", acc=r"acc: (\S+)") == {"acc": 93.5}
    assert text("acc: high", acc=r"acc: (\S+)") == {}
    assert [number(value) for value in (True, None, "x", [], "1e3", 5)] == [None, None, None, None, 1000.0, 5.0]


def test_json_lines():
    value = object_of('  {"val": {"loss": "0.5", "ok": true}, "val.acc": NaN, "lr": Infinity}\t')
    keys = [("loss", "val.loss"), ("acc", "val.acc"), ("lr", "lr"), ("ok", "val.ok"), ("no", "val.loss.x")]
    found = by_key(keys, value)
    assert math.isnan(found.pop("acc"))
    assert found == {"loss": 0.5, "lr": math.inf}
    assert [object_of(line) for line in ('{"a": 1', "[1]", "{]}", '"x"', "{" * 5000 + "}")] == [None] * 5


@pytest.mark.parametrize(
    ("line", "step", "every"),
    [
        ("Epoch 3/10 step 120: loss", 120.0, [120.0, 3.0]),
        ("[epoch: 007] loss", 7.0, [7.0]),
        ("global_step=40", 40.0, [40.0]),
        ("step 2.5", None, []),
        ("first steps", None, []),
    ],
)
def test_the_step_that_a_line_names(line, step, every):
    assert steps_of(Rules({}), {}, line) == (step, every)


def test_a_declared_step_goes_before_words_and_early_stopping_s_before_all():
    rules = Rules({"epoch": "e", "iteration": "i"})
    assert steps_of(rules, {"epoch": 3.0, "iteration": 99.0}, "step 7")[0] == 99.0
    rules = Rules({"epoch": "e", "iteration": "i"}, "epoch")
    assert steps_of(rules, {"iteration": 99.0}, "step 7") == (None, [7.0]), "rungs are counted in epochs only"
    assert steps_of(rules, {"epoch": 3.0}, "step 7") == (3.0, [3.0, 7.0])
    assert steps_of(Rules({}), {}, None, {"step": 5, "epoch": math.nan}) == (5.0, [5.0])
    request = {"run": {"metrics": {"e": "(e)"}}, "spec": {"sweep": {"early_stop": {"step": "e"}}}}
    assert request_rules(request).step == "e"
    assert request_rules({"run": {"metrics": {}}}) is None


def test_the_time_that_an_object_tells():
    assert time_of({"ts": 1700000000}) == 1700000000
    assert time_of({"timestamp": 1700000000123}) == 1700000000.123
    assert time_of({"time": "2026-12-01T09:30:00Z"}) == 1796117400
    assert time_of({"time": 12.5, "at": None}) is None  # seconds since the start, say


def read(path: Path, place: dict, whole: bool = False) -> list[str]:
    with path.open("rb") as file:
        assert metricread.opened(place, file.fileno()) is place
        return [line for found in metricread.lines(place, file.fileno(), whole) for line in found]


def test_lines_come_once_and_only_when_they_are_whole(tmp_path):
    log, place = tmp_path / "log", {}
    log.write_bytes(b"one\r\ntwo\rthr")
    assert read(log, place) == ["one", "two"]
    assert read(log, place) == []
    with log.open("ab") as file:
        file.write(b"ee\rfour")
    assert read(log, place) == ["three"]
    assert read(log, place, whole=True) == ["four"]
    log.write_bytes(b"new\n")  # cut: it begins anew
    assert read(log, place) == ["new"]
    other = tmp_path / "other"
    other.write_bytes(b"turned over\n")
    other.rename(log)
    assert read(log, place) == ["turned over"]


def test_overlong_lines_and_odd_bytes(tmp_path):
    log, place = tmp_path / "log", {}
    log.write_bytes(b"loss=1 " + b"x" * 5_000_000 + b"\nloss=\xff2\n" + b"y" * 2_000_000)
    found = read(log, place)
    assert [len(line) < 1_400_000 for line in found] == [True] * 3
    assert found[0].startswith("loss=1 ")
    assert found[1] == "loss=\ufffd2"
    with log.open("ab") as file:
        file.write(b"yy\nlast\n")
    assert read(log, place) == ["last"]


def test_passing_over_the_middle_of_a_log_begins_at_a_line(tmp_path):
    log, place = tmp_path / "log", {}
    log.write_bytes(b"".join(b"line %06d\n" % number for number in range(200_000)))
    with log.open("rb") as file:
        metricread.opened(place, file.fileno())
        pieces = metricread.lines(place, file.fileno(), True)
        first = next(pieces)
        assert metricread.skip_to_tail(place, file.fileno(), 1000) > 1_000_000
        rest = [line for found in pieces for line in found]
    assert first[0] == "line 000000"
    assert rest[-1] == "line 199999"
    assert 80 <= len(rest) <= 84
    assert all(len(line) == 11 for line in rest)


def test_what_is_no_plain_file_is_left(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    handle = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert metricread.opened({}, handle) is None
    os.close(handle)


def record(event: bytes) -> bytes:
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def test_event_files_are_read_record_by_record(tmp_path):
    path, place = tmp_path / "events.out.tfevents.1", {}
    path.write_bytes(record(b"a val/loss 1") + record(b"other") + record(b"x" * 50_000) + record(b"b val/loss 2")[:-6])

    def new() -> list[bytes]:
        with path.open("rb") as file:
            metricread.opened(place, file.fileno())
            return list(metricread.events(place, file.fileno(), [b"val/loss"]))

    assert new() == [b"a val/loss 1"]
    path.write_bytes(path.read_bytes() + record(b"b val/loss 2")[-6:] + b"\xff" * 30)
    assert new() == [b"b val/loss 2"]
    assert new() == []  # what follows is no record


def test_of_very_many_values_some_are_kept():
    kept = [count for count in range(1, 1_000_001) if count % metricjournal.stride(count) == 0]
    assert kept[:4096] == list(range(1, 4097))
    assert 15_000 < len(kept) < 25_000
