"""Ranking: causes before consequences, the rank that failed first, the first in time, the last stretch of a log."""

from __future__ import annotations

from typing import Any

import pytest

from jobrunner.core.catalogue import Catalogue, filled, read
from jobrunner.core.catalogue_match import MAX_LINES, Diagnosis, diagnose
from jobrunner.core.catalogue_text import disk_lines, findings, runs
from jobrunner.core.ranks import Line, failure_of, rank_of, stamp_of
from jobrunner.service.catalogue import shipped


def lines(*texts: str, first: int = 1) -> list[Line]:
    return [Line(number, text) for number, text in enumerate(texts, first)]


def best(*texts: str, **more: Any) -> str | None:
    found = diagnose(shipped(), lines(*texts), **more).best
    return found.entry.id if found else None


def told(found: Diagnosis, lang: str = "en") -> list[dict[str, Any]]:
    return findings(found, shipped(), lang, "k3f9x2a1", "exit 1")


OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = "[rank0]:[E1201 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def test_nothing_known_is_nothing() -> None:
    assert best("epoch 1", "loss 0.3", "") is None and diagnose(shipped(), []).hits == ()


def test_a_cause_outranks_what_came_before_and_after_it() -> None:
    assert (
        best(WATCHDOG, "RuntimeError: Connection closed by peer [127.0.0.1]:1", OOM, "E19999: Inner Error!", CHILD)
        == "cuda-out-of-memory"
    )


def test_without_a_cause_the_symptom_is_told_and_never_the_envelope() -> None:
    assert best(CHILD, "RuntimeError: Connection closed by peer [127.0.0.1]:1", WATCHDOG) == "collective-timeout"
    assert best(CHILD, "RuntimeError: Connection closed by peer [127.0.0.1]:1") == "gloo-peer-closed"
    assert best("E19999: Inner Error!", CHILD) == "cann-inner-error"


def test_a_programs_own_exception_yields_to_what_is_known() -> None:
    assert best("ValueError: something", "OSError: [Errno 28] No space left on device") == "no-space"
    assert best("E19999: Inner Error!", "ValueError: something", CHILD) == "python-exception"


def test_the_rank_that_the_launcher_names_comes_first() -> None:
    summary = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : 1 (pid: 5)",
    ]
    texts = [
        "[rank0]: KeyError: 'a'",
        "[rank0]: OSError: [Errno 28] No space left on device",
        f"[rank2]: {OOM}",
        *summary,
    ]
    found = diagnose(shipped(), lines(*texts))
    assert found.best is not None and (found.best.entry.id, found.best.rank) == ("cuda-out-of-memory", 2)
    assert found.failure is not None and (found.failure.rank, found.failure.exit_code) == (2, 1)


def test_trouble_that_the_job_survived_is_not_its_end() -> None:
    early = lines("OSError: [Errno 28] No space left on device", first=10)
    late = lines(OOM, first=5000)
    assert [hit.entry.id for hit in diagnose(shipped(), [*early, *late]).hits] == ["cuda-out-of-memory", "no-space"]
    near = lines(OOM, first=60)
    assert [hit.entry.id for hit in diagnose(shipped(), [*early, *near]).hits] == ["no-space", "cuda-out-of-memory"]
    vague = lines("ValueError: of the program", first=5000)
    found = diagnose(shipped(), [*early, *vague]).best
    assert found is not None and found.entry.id == "no-space", "an error of the program alone is no better explanation"


def test_a_warning_counts_less_than_an_error() -> None:
    assert (
        best(
            "2026-12-01 WARNING retrying: [Errno 28] No space left on device",
            "ModuleNotFoundError: No module named 'x'",
        )
        == "module-missing"
    )


def test_noise_of_the_shell_is_told_only_where_nothing_better_is() -> None:
    noise = "bash: line 1: npu-smi: command not found"
    assert best(noise, "ValueError: of the program") == "python-exception"
    assert best(noise) == "command-not-found"
    assert best(noise, "ValueError: of the program", ends=["exit 127"]) == "command-not-found"


def test_time_orders_ranks_that_write_in_any_order() -> None:
    late = "[rank1]: 2026-12-01 09:31:00,000 ERROR [Errno 28] No space left on device"
    early = f"[rank0]: 2026-12-01 09:30:00,000 ERROR {OOM}"
    assert best(late, early) == "cuda-out-of-memory"
    assert best(late.replace("2026-12-01 09:31:00,000 ", ""), early) == "no-space", (
        "without a time the order of the log counts"
    )


def test_the_end_explains_where_the_log_does_not() -> None:
    assert best("epoch 3", ends=["FAILED exit", "exit 137"]) == "killed-9"
    assert best("epoch 3", ends=["signal SIGSEGV"]) == "crashed-segv"
    assert best(OOM, ends=["exit 137"]) == "cuda-out-of-memory"
    assert best("epoch 3", ends=["exit 1"]) is None


def test_a_card_that_the_job_did_not_have_is_a_weak_guess() -> None:
    assert best("device = cpu", device="cpu") is None and best("device = cpu", device="mlu") == "mlu-on-cpu"
    assert best(OOM, device="npu") == "cuda-out-of-memory"


def test_colours_do_not_hide_anything() -> None:
    assert best("\x1b[31mRuntimeError: CUDA \x1b[1mout of memory\x1b[0m") == "cuda-out-of-memory"


def test_the_number_of_lines_is_bounded() -> None:
    found = diagnose(shipped(), [*lines(OOM), *lines(*["step"] * (2 * MAX_LINES), first=2)])
    assert found.best is not None and found.best.entry.id == "cuda-out-of-memory"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("[rank3]: Traceback", 3),
        ("[rank11]:[E1201 x.cpp:1] [Rank 11] Watchdog", 11),
        ("[default7]:Traceback", 7),
        ("[ERROR] 2026-12-01-09:30:00 (PID:3121, Device:0, RankID:5) ERR00100", 5),
        ("[ERROR] 2026-12-01-09:30:00 (PID:3121, Device:0, RankID:-1) ERR00100", None),
        ("rank 4: boom", 4),
        ("[1]<stderr>:boom", 1),
        ("ranking 4 things", None),
        ("plain", None),
    ],
)
def test_ranks_of_lines(text: str, rank: int | None) -> None:
    assert rank_of(text) == rank


def test_a_process_is_known_by_its_rank_once_a_line_tells_both() -> None:
    texts = [
        "EI0004: [PID: 77] 2026-12-01-09:30:00.1 The ranktable or rank is invalid",
        "[ERROR] 2026-12-01-09:30:00 (PID:77, Device:0, RankID:6) ERR02200 DIST call hccl api failed.",
    ]
    found = diagnose(shipped(), lines(*texts)).best
    assert found is not None and found.rank == 6


def test_times_of_lines() -> None:
    assert stamp_of("x 2026-03-02-11:20:31.102.332 y") == "20260302112031.102332"
    assert stamp_of("2026/03/02 11:20:31,5 y") == "20260302112031.500000" and stamp_of("step 20260302") == ""


def test_launchers_reports() -> None:
    report = lines("x", "failed (exitcode: -9) local_rank: 1 (pid: 3) of binary: /usr/bin/python3")
    failure = failure_of(report)
    assert failure is not None and (failure.rank, failure.exit_code, failure.words) == (1, -9, ("rank exit -9",))
    assert failure_of(lines("nothing")) is None


def test_findings_name_line_rank_and_the_others() -> None:
    found = diagnose(shipped(), lines("x", f"[rank1]: {OOM}", f"[rank2]: {OOM}", f"[rank3]: {OOM}", f"[rank0]: {OOM}"))
    [finding] = told(found)
    assert set(finding) == {"code", "summary", "evidence", "remedy"}
    assert finding["evidence"] == f"line 2 (rank 1): [rank1]: {OOM}\nthe same on ranks 0, 2-3"
    [chinese] = told(found, "zh")
    assert chinese["evidence"].startswith("第 2 行（rank 1）") and "显存" in chinese["summary"]


def test_codes_are_decoded_and_may_turn_a_cause_into_a_symptom() -> None:
    [finding] = told(diagnose(shipped(), lines("RuntimeError: x, error code is 207010")))
    assert finding["summary"] == "the NPU runtime returned 207010: no model is left"
    found = diagnose(shipped(), lines("RuntimeError: x, error code is 507046")).best
    assert found is not None and found.kind == "symptom"
    [finding] = told(diagnose(shipped(), lines("RuntimeError: x, error code is 507777")))
    assert finding["summary"] == "the NPU runtime returned 507777"


def test_what_cann_itself_advises_is_shown() -> None:
    texts = [
        "EL0005: [PID: 1] The resources are busy.",
        "        Possible Cause: 1. Occupied.",
        "        Solution: Close.",
        "        TraceBack",
    ]
    [finding] = told(diagnose(shipped(), lines(*texts)))
    assert finding["evidence"].splitlines()[1:] == ["Possible Cause: 1. Occupied.", "Solution: Close."]


def test_where_only_the_launcher_speaks_its_first_rank_is_told() -> None:
    texts = ["failed (exitcode: 1) local_rank: 1 (pid: 3) of binary: /usr/bin/python3", CHILD]
    first, *_ = told(diagnose(shipped(), lines(*texts)))
    assert first["code"] == "first-rank" and first["summary"].startswith("rank 1 failed first (exit code 1)")
    assert "jobrunner logs k3f9x2a1 " in first["remedy"]


def test_near_and_unless() -> None:
    entry = {
        "id": "x",
        "kind": "cause",
        "patterns": ["bad"],
        "near": ["ctx"],
        "unless": ["not bad"],
        "cause": "c",
        "fix": "f",
    }
    catalogue = read({"entries": [entry]})
    assert diagnose(catalogue, lines("bad", "ctx")).best is not None
    assert diagnose(catalogue, lines("bad", *["-"] * 40, "ctx")).best is None
    assert diagnose(catalogue, lines("not bad", "ctx")).best is None


def test_later_catalogues_win() -> None:
    own = read({"entries": [{"id": "no-space", "kind": "cause", "patterns": ["ENOSPC"], "cause": "ours", "fix": ""}]})
    both = shipped().joined(own)
    assert len(both.entries) == len(shipped().entries) and both.entries["no-space"].cause["zh"] == "ours"
    codes = shipped().joined(read({"tables": {"acl": {"507777": "ours"}}}))
    assert codes.code("acl", "507777") is not None and codes.code("acl", "507015") is not None
    assert Catalogue().code("acl", "1") is None


def test_placeholders() -> None:
    assert (
        filled("a {x}: {y}", {"x": "1"}) == "a 1" and filled("a ({x}) b", {}) == "a b" and filled("{x} b", {}) == "? b"
    )
    assert filled("runtime: {vendor: auto} {}", {}) == "runtime: {vendor: auto} {}"


def test_numbers_and_disks() -> None:
    assert runs([3, 1, 2, 9]) == "1-3, 9"
    disks = [
        {"mount": "/", "free": 50 << 30, "total": 100 << 30, "inodes_free": 5},
        {"mount": "/data", "free": 0, "total": 1 << 40, "inodes_free": 7},
        {"mount": "/home", "free": 50 << 30, "total": 100 << 30, "inodes_free": 0},
        {"mount": "/odd", "free": None, "total": 1},
    ]
    assert disk_lines(disks, "en") == [
        "now: /data has 0 B free of 1.0 TB",
        "now: /home has 50.0 GB free of 100 GB, no inodes left",
    ]
