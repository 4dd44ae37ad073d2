"""Which cards a job gets, by what links them; and the variables by which it sees them."""

from pathlib import Path

import pytest

from jobrunner.agent.accelerators import KINDS, near, visible

DATA = Path(__file__).resolve().parents[1] / "data" / "accelerators"


def host(model, count, chips=1, boards=None):
    return [
        {"index": index, "model": model, "board": (boards or range(count))[index // chips]} for index in range(count)
    ]


def choose(device, free, count, cards):
    found, reason = KINDS[device].choose(free, count, cards)
    assert (found is None) == bool(reason)
    if found is not None:
        assert len(found) == count and set(found) <= set(free) and found == sorted(found)
    return found if found is not None else reason


def test_910a_stays_inside_one_ring_of_four():
    cards = host("910A", 8)
    assert choose("npu", [0, 1, 4, 5, 6], 2, cards) == [0, 1], "the ring with just two free first"
    assert choose("npu", [2, 4, 5, 6], 1, cards) == [2], "one free first, then three, two, four"
    assert choose("npu", [0, 1, 4, 5, 6], 1, cards) == [4]
    assert choose("npu", [0, 1, 2, 4, 5, 6, 7], 4, cards) == [4, 5, 6, 7]
    assert choose("npu", range(8), 8, cards) == list(range(8))
    assert "no group of 4" in choose("npu", [0, 4], 2, cards)
    assert "1, 2, 4, 8" in choose("npu", range(8), 3, cards)
    assert "1, 2, 4, 8" in choose("npu", range(8), 6, cards)


def test_910a_rings_follow_the_board_numbers_in_a_container():
    cards = host("910A", 4, boards=[2, 3, 4, 5])
    assert choose("npu", [0, 1, 2, 3], 2, cards) == [0, 1]
    assert "no group" in choose("npu", [1, 2], 2, cards)
    assert "no group" in choose("npu", [0, 1, 2, 3], 4, cards), "all that the container shows are of two rings"
    assert "no group" in choose("npu", [0, 1], 2, host("910A", 2, boards=[3, 4]))
    assert choose("npu", [0, 1], 2, host("910A", 2, boards=[6, 7])) == [0, 1]


@pytest.mark.parametrize(("wanted", "model", "count", "words"), [
    ([3, 4], "910A", 8, "cards 3, 4 are not in one linked group of 4 910A cards"),
    ([0, 4], "Ascend 910A", 8, "cards 0, 4 are not in one"), ([0, 1, 2], "910ProB", 8, "1, 2, 4, 8"),
    ([3, 1], "910A", 8, None), ([5], "910A", 8, None), ([*range(8)], "910A", 8, None),
    ([7, 8], "910B2C", 16, "cards 7, 8 are not in one linked group of 8 910B2C cards"),
    ([*range(9)], "910B2C", 16, "not in one linked group"), ([8, 15, 9], "910B2C", 16, None),
    ([*range(16)], "910B2C", 16, None), ([3, 4, 7], "910B3", 8, None), ([1, 2], "310P3", 8, None),
    ([0, 99], "910A", 8, None),
])  # fmt: skip
def test_cards_that_a_spec_names_keep_to_the_links(wanted, model, count, words):
    reason = KINDS["npu"].refusal(wanted, host(model, count))
    assert reason is None if words is None else words in reason


def test_cards_of_two_models_that_a_spec_names():
    mixed = [{"index": i, "model": "910A" if i < 4 else "910B3", "board": i} for i in range(8)]
    assert "different models (910A, 910B3)" in KINDS["npu"].refusal([0, 5], mixed)
    assert KINDS["mlu"].refusal([1, 2], [dict(card, model="MLU370-X8") for card in mixed]) is None, "only preferred"


def test_910b_with_sixteen_cards_has_two_groups_of_eight():
    cards = host("910B2C", 16)
    assert choose("npu", range(16), 8, cards) == list(range(8))
    assert choose("npu", [0, 1, 2, *range(8, 16)], 3, cards) == [0, 1, 2], "the fullest group that fits"
    assert choose("npu", [0, 1, 2, *range(8, 16)], 4, cards) == [8, 9, 10, 11]
    assert "only all 16" in choose("npu", range(16), 9, cards)
    assert choose("npu", range(16), 16, cards) == list(range(16))
    assert "no group of 8" in choose("npu", [0, 1, 2, 3, 12, 13, 14, 15], 8, cards)


def test_910b_with_eight_cards_takes_any_and_prefers_one_half():
    cards = host("910B3", 8)
    assert choose("npu", [0, 1, 3, 4, 5, 6, 7], 4, cards) == [4, 5, 6, 7]
    assert choose("npu", [0, 4, 5, 6, 7], 1, cards) == [0]
    assert choose("npu", [0, 1, 5], 3, cards) == [0, 1, 5]
    assert choose("npu", range(8), 5, cards) == [0, 1, 2, 3, 4]


def test_a3_keeps_the_two_dies_of_a_board_together():
    cards = host("Ascend910", 16, chips=2)
    assert choose("npu", [1, 2, 3], 2, cards) == [2, 3]
    assert choose("npu", [1, 2, 3], 1, cards) == [1], "the half-used board first"
    assert choose("npu", [1, 2, 3, 4, 5], 3, cards) == [1, 2, 3]
    assert choose("npu", [1, 2], 2, cards) == [1, 2], "two halves if there is nothing better"


def test_310_boards():
    duo = host("310P3", 8, chips=2, boards=[1, 2, 4, 5])
    assert choose("npu", [1, 4, 5], 2, duo) == [4, 5]
    four = host("310", 8, chips=4)
    assert choose("npu", [3, 4, 5, 6], 1, four) == [3]
    assert choose("npu", [0, 1, 2, 3, 5, 6, 7], 3, four) == [5, 6, 7]


def test_mlu370_x8_boards_hold_two_cards():
    cards = host("MLU370-X8", 8)
    for card in cards:
        card["board"] = None
    assert choose("mlu", [1, 2, 3, 6], 2, cards) == [2, 3]
    assert choose("mlu", [1, 2, 3, 6], 1, cards) == [1]
    assert choose("mlu", [1, 2, 3, 6], 3, cards) == [1, 2, 3]


def test_unknown_models_and_gpus_take_the_lowest():
    assert choose("gpu", [2, 5, 7], 2, host("NVIDIA RTX A6000", 8)) == [2, 5]
    assert choose("npu", [7, 2, 5], 2, host("xxx", 8)) == [2, 5]
    assert choose("npu", [0, 1], 2, host(None, 2)) == [0, 1]


def test_cards_of_two_models_are_not_mixed():
    cards = host("NVIDIA RTX A6000", 2) + [{"index": i, "model": "NVIDIA H100", "board": None} for i in (2, 3)]
    assert choose("gpu", [1, 2, 3], 2, cards) == [2, 3]
    assert "one model" in choose("gpu", [0, 1, 2, 3], 3, cards)


def test_too_few():
    cards = host("910B3", 8)
    assert choose("npu", [], 0, cards) == []
    assert "2 cards are asked for and 1 is free" in choose("npu", [3], 2, cards)
    assert "the host has 8" in choose("npu", range(8), 9, cards)
    assert "0 are free" in choose("npu", [17], 1, cards), "a card that the host has not is not free"


@pytest.mark.parametrize(("device", "variable"), [
    ("npu", "ASCEND_RT_VISIBLE_DEVICES"), ("mlu", "MLU_VISIBLE_DEVICES"), ("gpu", "CUDA_VISIBLE_DEVICES"),
    ("musa", "MUSA_VISIBLE_DEVICES"),
])  # fmt: skip
def test_visible_devices_are_ascending_without_blanks_or_repeats(device, variable):
    assert visible(device, [10, 2, 1, 2])[variable] == "1,2,10"
    assert set(visible(device, [0])) <= {variable, "CUDA_DEVICE_ORDER"}


def test_without_cards_all_variables_are_set_and_empty():
    variables = ("ASCEND_RT_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES")
    empty = dict.fromkeys(variables, "")
    assert visible("npu", []) == visible("cpu", []) == empty


def test_gpus_are_numbered_as_nvidia_smi_numbers_them():
    assert visible("gpu", [1])["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def matrix(name):
    """Eight GPUs as `nvidia-smi topo -m` showed them."""
    rows = near.rows(near.parse((DATA / name).read_text()), range(8))
    return [{"index": index, "model": "NVIDIA", "board": None, "near": rows[index]} for index in range(8)]


@pytest.mark.parametrize(("name", "free", "count", "expected"), [
    ("nvidia-topo-440.64-titanv-8cards", [1, 2, 3, 4, 5], 2, [4, 5]),  # a pair that leaves the other half whole
    ("nvidia-topo-440.64-titanv-8cards", [1, 2, 3, 4, 5], 1, [1]),
    ("nvidia-topo-440.64-titanv-8cards", [0, 2, 3, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
    ("nvidia-topo-440.64-titanv-8cards", [1, 2, 3, 5, 7], 3, [1, 2, 3]),
    ("nvidia-topo-440.64-titanv-8cards", range(8), 8, list(range(8))),
    ("nvidia-topo-580.173.02-v100-8cards", range(8), 4, [0, 1, 2, 3]),
    ("nvidia-topo-580.173.02-v100-8cards", [0, 1, 4, 6], 2, [0, 4]),
    ("nvidia-topo-580.173.02-v100-8cards", [1, 3, 5, 6, 7], 2, [1, 5]),
])  # fmt: skip
def test_gpus_that_are_near_each_other_go_together(name, free, count, expected):
    assert choose("gpu", free, count, matrix(name + ".txt")) == expected


@pytest.mark.parametrize("change", [
    lambda text: "", lambda text: text.replace("GPU3\tPHB", "GPU3\tSYS"), lambda text: text.replace("PIX", "ABC"),
    lambda text: text.partition("GPU7\t")[0] + "GPU7\t", lambda text: text + text.splitlines()[1] + "\n",
    lambda text: "\n".join(line.rpartition("\t")[0].rpartition("\t")[0] for line in text.splitlines()[:5]),
])  # fmt: skip
def test_a_matrix_that_is_not_whole_says_nothing(change):
    text = change((DATA / "nvidia-topo-440.64-titanv-8cards.txt").read_text())
    assert near.rows(near.parse(text), range(8)) == {}


def test_a_matrix_with_underlined_titles_is_read():
    text = (DATA / "nvidia-topo-440.64-titanv-8cards.txt").read_text()
    first, rest = text.split("\n", 1)
    assert near.parse("\x1b[4m" + first + "\x1b[0m\n" + rest) == near.parse(text) != {}
