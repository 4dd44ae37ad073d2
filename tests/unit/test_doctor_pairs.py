"""Versions that belong together: how they compare, and which pairs do not fit."""

from __future__ import annotations

import itertools

import pytest

from jobrunner.service.doctor.pairs import TABLE, begins, judged, key, mismatches, older

ORDER = ["22.0.3", "23.0.rc2.3", "23.0.2", "23.0.5", "24.1.rc1", "24.1.rc1.b030", "24.1.rc2", "24.1.RC3", "24.1.0",
         "24.1.0.1", "25.0.rc1", "25.0.rc1.1", "25.2.0", "25.2.3", "25.5.0", "26.0.rc2"]  # fmt: skip


def test_versions_compare_as_their_makers_mean_them() -> None:
    for one, other in itertools.combinations(ORDER, 2):
        assert not older(other, one), (one, other)
        if key(one) != key(other):
            assert older(one, other), (one, other)
    assert older("8.0.RC2", "8.0.0") and not older("8.0.0", "8.0.RC3")
    assert not older("2.5.1.post1", "2.5.1") and not older("2.5.1", "2.5.1.post1")
    assert older("525", "525.60.13") and not older("525.0", "525")
    assert key("2.1.0+cpu") == (2, 1, 0) and key("v6.2.29") == (6, 2, 29) and key("8.0.0.alpha003") == (8, 0, 0)


@pytest.mark.parametrize(
    ("version", "series", "expected"),
    [
        ("8.2.RC1", "8.2", True),
        ("8.2.RC1", "8", True),
        ("8.20", "8.2", False),
        ("12.4", "12", True),
        ("9.0", "8", False),
    ],
)
def test_a_series_is_told_by_whole_numbers(version: str, series: str, expected: bool) -> None:
    assert begins(version, series) is expected


WRONG = [
    ("npu", {"toolkit": "8.5.0", "driver": "24.1.0"}, "25.0.RC1"),
    ("npu", {"toolkit": "8.2.RC1", "driver": "24.1.rc1"}, "24.1.RC2"),
    ("npu", {"toolkit": "8.0.RC1", "torch_npu": "2.5.1", "torch": "2.5.1"}, "8.0.RC2"),
    ("npu", {"torch": "2.1.0", "torch_npu": "2.6.0.post3"}, "made for torch 2.6.0"),
    ("mlu", {"torch": "2.5.0", "torch_mlu": "1.22.1+torch2.4.0"}, "made for torch 2.4.0"),
    ("mlu", {"toolkit": "4.1.0", "driver": "5.10.22"}, "6.0.3"),
    ("gpu", {"cuda": "12.4", "driver": "470.223.02"}, "525"),
    ("gpu", {"cuda": "13.0", "driver": "570.86.10"}, "580"),
    ("gpu", {"numpy": "2.1.0", "torch": "2.2.2+cu121"}, "2.3"),
]
RIGHT = [
    ("npu", {"toolkit": "8.5.0", "driver": "25.0.rc1.1"}),
    ("npu", {"toolkit": "8.2.RC1", "driver": "24.1.rc2"}),
    ("npu", {"torch": "2.1.0+cpu", "torch_npu": "2.1.0.post17"}),
    ("mlu", {"torch": "2.4.0", "torch_mlu": "1.22.1+torch2.4.0"}),
    ("gpu", {"cuda": "12.8", "driver": "525.60.13"}),
    ("gpu", {"cuda": "11.8", "driver": "570.86.10"}),
    ("gpu", {"numpy": "2.0.1", "torch": "2.3.0"}),
]


@pytest.mark.parametrize(("device", "versions", "word"), WRONG)
def test_pairs_that_do_not_fit_are_named_with_a_source(device: str, versions: dict[str, str | None], word: str) -> None:
    [found] = mismatches(device, versions)
    assert word in found.text and found.remedy and len(found.source) > 10


@pytest.mark.parametrize(("device", "versions"), RIGHT)
def test_pairs_that_fit_are_not_complained_about(device: str, versions: dict[str, str | None]) -> None:
    assert mismatches(device, versions) == [] and judged(device, versions) == 1


@pytest.mark.parametrize("version", [None, "", "unknown", "V100R001C18"])
def test_what_is_not_a_version_is_not_judged(version: str | None) -> None:
    for device in TABLE:
        found: dict[str, str | None] = dict.fromkeys(("toolkit", "driver", "torch", "numpy", "cuda"), version)
        assert mismatches(device, found) == [], device


def test_every_row_names_its_source() -> None:
    assert all(row.source and key(row.least) and key(row.series) for rows in TABLE.values() for row in rows)
