"""Launchers before the start, by values: what is put right, what is refused, what is only told."""

from __future__ import annotations

from typing import Any

import pytest

from jobrunner.agent import launching
from jobrunner.agent.launch_words import Options, expanded, simple_commands

NPU = "ASCEND_RT_VISIBLE_DEVICES"
PORT = 20032


class Files(launching.Facts):
    """Facts with given files, under /work or absolute."""

    def __init__(self, files: dict[str, str] | None = None, **environment: str) -> None:
        super().__init__("/work", {"HOME": "/home/u", **environment})
        known = {path if path.startswith("/") else f"/work/{path}": text for path, text in (files or {}).items()}
        self.read = known.get
        self.exists = known.__contains__


def advise(words: list[str] | str, cards: list[int], facts: Files | None = None, **more: Any) -> launching.Advice:
    argv = ["bash", "-c", words] if isinstance(words, str) else words
    return launching.advise(argv, cards, more.get("variable", NPU), more.get("port", PORT), facts or Files())


DS = "--master_port=20032"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("deepspeed --num_gpus 8 t.py --lr 1", f"deepspeed {DS} t.py --lr 1"),
        ("deepspeed --num_gpus=2 t.py --num_gpus 9", f"deepspeed {DS} t.py --num_gpus 9"),
        ("deepspeed --num_gpus 1 t.py", f"deepspeed {DS} --include=localhost:4 t.py"),
        ("deepspeed --num_nodes 1 --num_accelerators 2 t.py", f"deepspeed {DS} t.py"),
        ("deepspeed --num_nodes 1 t.py", f"deepspeed {DS} t.py"),
        ("deepspeed --include localhost:0,1 t.py", f"deepspeed {DS} t.py"),
        ("deepspeed -i localhost:0 t.py", f"deepspeed {DS} --include=localhost:4 t.py"),
        ("deepspeed --include localhost:4,5 t.py", f"deepspeed {DS} --include localhost:4,5 t.py"),
        ("deepspeed --exclude localhost:0 t.py", f"deepspeed {DS} t.py"),
        ("deepspeed --module --master_port 7777 pkg.train", "deepspeed --module --master_port 7777 pkg.train"),
        ("nohup env A=1 deepspeed --num_gpus 2 t.py", f"nohup env A=1 deepspeed {DS} t.py"),
        ("python -m deepspeed.launcher.runner --num_gpus 2 t.py", f"python -m deepspeed.launcher.runner {DS} t.py"),
        ("/e/bin/python /e/bin/deepspeed --num_gpus 2 t.py", f"/e/bin/python /e/bin/deepspeed {DS} t.py"),
        ("deepspeed --num_nodes 2 --num_gpus 8 t.py", "deepspeed --num_nodes 2 --num_gpus 8 t.py"),
        ("torchrun --nproc_per_node 8 t.py", "torchrun --master_port=20032 --nproc_per_node=2 t.py"),
        ("torchrun --nproc-per-node=2 t.py", "torchrun --master_port=20032 --nproc-per-node=2 t.py"),
        ("torchrun --nproc_per_node gpu t.py", "torchrun --master_port=20032 --nproc_per_node gpu t.py"),
        ("torchrun --standalone --nproc_per_node 2 t.py", "torchrun --standalone --nproc_per_node 2 t.py"),
        ("torchrun --nnodes 2 --nproc_per_node 2 t.py", "torchrun --nnodes 2 --nproc_per_node 2 t.py"),
        ("torchrun --master-port 9 t.py --nproc_per_node 8", "torchrun --master-port 9 t.py --nproc_per_node 8"),
        ("torchrun --rdzv-backend c10d t.py", "torchrun --rdzv_endpoint=127.0.0.1:20032 --rdzv-backend c10d t.py"),
        ("python -m torch.distributed.launch --nproc_per_node=4 t.py",
         "python -m torch.distributed.launch --master_port=20032 --nproc_per_node=2 t.py"),
        ("accelerate launch --gpu_ids 0,1 t.py", "accelerate launch --main_process_port=20032 --gpu_ids=all t.py"),
        ("accelerate launch --gpu_ids 4,5 t.py", "accelerate launch --main_process_port=20032 --gpu_ids 4,5 t.py"),
        ("accelerate launch --multi_gpu --num_processes 8 t.py",
         "accelerate launch --main_process_port=20032 --num_processes=2 --multi_gpu t.py"),
        ("python -m accelerate.commands.launch --main_process_port 1 t.py",
         "python -m accelerate.commands.launch --main_process_port 1 t.py"),
        (f"env {NPU}=0,1 B=2 python t.py", "env B=2 python t.py"),
        (f"env {NPU}=5 python t.py", f"env {NPU}=5 python t.py"),
        ("python t.py --num_gpus 8", "python t.py --num_gpus 8"),
        ("echo deepspeed --num_gpus 8", "echo deepspeed --num_gpus 8"),
        ("mytool --engine deepspeed --num_gpus 8", "mytool --engine deepspeed --num_gpus 8"),
        ("uv run deepspeed --num_gpus 8 t.py", f"uv run deepspeed {DS} t.py"),
        ("numactl -N 0 accelerate launch --gpu_ids 0,1 --main_process_port 7 t.py",
         "numactl -N 0 accelerate launch --gpu_ids=all --main_process_port 7 t.py"),
    ],
)  # fmt: skip
def test_lists_of_words_are_put_right(words: str, expected: str) -> None:
    advice = advise(words.split(), [4, 5])
    assert " ".join(advice.argv) == expected and advice.refusal is None
    left_out = [word for word in words.split() if word not in expected.split()]
    assert bool(advice.notes) >= bool(left_out), "what is taken away is told"


def test_a_configuration_of_accelerate_is_read() -> None:
    config = "compute_environment: LOCAL_MACHINE\ngpu_ids: '0,1'\nnum_processes: 8\nmain_process_port: 5000\n"
    for words, facts in (
        (["accelerate", "launch", "--config_file", "c.yaml", "t.py"], Files({"c.yaml": config})),
        (
            ["accelerate", "launch", "t.py"],
            Files({"/home/u/.cache/huggingface/accelerate/default_config.yaml": config}),
        ),
        (["accelerate", "launch", "t.py"], Files({"/hf/accelerate/default_config.yaml": config}, HF_HOME="/hf")),
    ):
        advice = advise(words, [2, 3], facts)
        assert advice.argv[2:4] == ["--num_processes=2", "--gpu_ids=all"] and len(advice.notes) == 2
    assert launching.settings_of('{"gpu_ids": "0,1", "num_processes": 2}') == {"gpu_ids": "0,1", "num_processes": "2"}
    assert launching.settings_of("a: 1  # note\nb:\n  c: 2\n") == {"a": "1", "b": ""}


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed --num_gpus 2 t.py",
        "cd x && exec deepspeed --num_gpus=2 t.py | tee log",
        "if true; then\n  deepspeed \\\n    --num_gpus 2 t.py\nfi",
        "N=2; deepspeed --num_gpus $N t.py",
        "deepspeed --num_gpus ${JOBRUNNER_NUM_CARDS} t.py",
        "deepspeed --include localhost:0,1 t.py",
        "deepspeed --exclude localhost:7 t.py",
        "accelerate launch --gpu_ids 0,1 t.py",
        f"{NPU}=0 python t.py",
        f"export A=1 {NPU}=0,1; python t.py",
        f"({NPU}='0,1' torchrun t.py)",
        "bash run.sh",
        "python bad.py",
    ],
)
def test_shell_text_that_would_take_other_cards_is_refused(text: str) -> None:
    files = {"run.sh": f"# comment\nexport {NPU}=0\n", "bad.py": f'import os\nos.environ["{NPU}"] = "0"\n'}
    advice = advise(text, [4, 5], Files(files, JOBRUNNER_NUM_CARDS="2"))
    assert advice.refusal and "4,5" in advice.refusal and advice.argv == ["bash", "-c", text]
    assert ". " in advice.refusal, "says the way out"


@pytest.mark.parametrize(
    "text",
    [
        "deepspeed t.py",
        "echo 'deepspeed --num_gpus 2'",
        "# deepspeed --num_gpus 2",
        "cat <<END\ndeepspeed --num_gpus 2 t.py\nEND\necho done",
        f"{NPU}=$JOBRUNNER_CARDS python t.py",
        f"{NPU}=5 python a.py & {NPU}=4 python b.py; wait",
        "CUDA_VISIBLE_DEVICES=0,1 python t.py",
        "python good.py",
        "grep deepspeed --num_gpus 3",
        "a='unfinished",
    ],
)
def test_harmless_shell_text_is_left_alone(text: str) -> None:
    advice = advise(text, [4, 5], Files({"good.py": f'x = os.environ["{NPU}"]\nos.environ["A"] = "0"\n'}))
    assert advice.refusal is None and advice.argv == ["bash", "-c", text]


def test_shell_text_that_happens_to_fit_is_told() -> None:
    advice = advise("deepspeed --num_gpus 2 t.py", [0, 1])
    assert advice.refusal is None and "29500" in advice.notes[0] and "just now" in advice.notes[1]
    advice = advise("torchrun --nproc_per_node 8 t.py", [0, 1])
    assert advice.environment == {"PET_MASTER_PORT": "20032"} and "8" in advice.notes[0]
    assert "left as it is" in advice.notes[0]
    advice = advise(f"for i in 0 1; do {NPU}=$i python t.py & done", [4, 5])
    assert advice.refusal is None and "not known before" in advice.notes[0]
    assert advise(f"{NPU}=$JOBRUNNER_CARDS python t.py", [4, 5], Files(JOBRUNNER_CARDS="4,5")).notes == []


def test_a_script_that_may_set_the_variable_is_told() -> None:
    text = f'import os\nif debug:\n    os.environ["{NPU}"] = "0"\n'
    advice = advise(["python3", "t.py"], [4], Files({"t.py": text}))
    assert advice.refusal is None and "if that line is reached" in advice.notes[0]
    advice = advise(["python3", "t.py"], [4], Files({"t.py": text.replace("if debug:\n    ", "")}))
    assert advice.refusal and "t.py sets" in advice.refusal


def test_shell_scripts_are_read_whole() -> None:
    files = Files({"run.sh": "#!/bin/bash\nset -e\ndeepspeed --num_gpus 8 t.py\n"})
    for words in (["bash", "run.sh"], ["bash", "-ex", "run.sh", "--a"], ["/work/run.sh"]):
        assert advise(words, [2, 3], files).refusal, words
    assert advise(["bash", "other.sh"], [2, 3], files).refusal is None


def test_without_cards_nothing_may_take_any() -> None:
    assert advise(["deepspeed", "--num_gpus", "2", "t.py"], []).refusal
    assert advise(["accelerate", "launch", "--gpu_ids", "0", "t.py"], []).refusal
    assert advise(["torchrun", "--nproc_per_node", "4", "t.py"], [], variable=None).refusal is None
    cpu = Files(DS_ACCELERATOR="cpu")
    assert advise(["deepspeed", "--num_accelerators", "2", "t.py"], [], cpu, variable=None).refusal is None


def test_llamafactory_starts_as_many_as_it_has_cards() -> None:
    words = ["llamafactory-cli", "train", "x.yaml"]
    advice = advise(words, [2, 3], Files(NPROC_PER_NODE="8", FORCE_TORCHRUN="1"))
    assert advice.environment == {"NPROC_PER_NODE": "2"} and advice.argv == words and "8" in advice.notes[0]
    assert advise(words, [2, 3], Files(NPROC_PER_NODE="1")).notes == []
    assert "one host" in advise("FORCE_TORCHRUN=1 llamafactory-cli train x", [2], Files(NNODES="2")).notes[0]


def test_a_hostfile_of_the_site_is_passed_over() -> None:
    advice = advise(["deepspeed", "t.py"], [2], Files({"/job/hostfile": "w slots=8"}))
    assert "--hostfile=/dev/null" in advice.argv and advice.notes


def test_words_of_a_shell_text() -> None:
    text = "a=1 b \"c d\" 'e;f' # no\nif x; then y|z & fi\ncat <<-E >f\n\tg;h\n\tE\n$(i j) ${k:-l m}\n{ n; }"
    assert simple_commands(text) == [
        ["a=1", "b", "c d", "e;f"], ["x"], ["y"], ["z"], ["cat", ">f"], ["$(i j)", "${k:-l m}"], ["n"],
    ]  # fmt: skip
    assert simple_commands('a "b\\"c" d\\ e \\\n f') == [["a", 'b"c', "d e", "f"]]
    for odd in ("'", '"', "$(", "${", "<<", "\\", "((", "}", "a <<E\nb"):
        simple_commands(odd)
    table = {"A": "1", "B": "x y"}
    assert expanded("$A/${B}/$C/${D}/${A:-2}/$$", table) == "1/x y/$C/${D}/${A:-2}/$$"


def test_options_of_a_launcher() -> None:
    options = Options(["l", "--a-b", "1", "-f", "--c=2", "s.py", "--a_b", "3"], 1, ["-f"])
    assert options.get("--a_b") == "1" and options.get("--c") == "2" and options.script == 5 and options.has("-f")
    options.put("--c", 5)
    options.drop("--a_b")
    assert options.words == ["l", "--c=5", "-f", "s.py", "--a_b", "3"]
    assert Options(["l", "--last"], 1).get("--last") == ""
