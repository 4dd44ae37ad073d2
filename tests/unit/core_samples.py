"""Specs and hosts files for the tests of the core: good ones, and bad ones with where and why they are refused."""

FULL = """\
name: resnet18-cifar10
code: {path: ., include: [data/small.bin], exclude: ["*.ckpt"]}
script: train.py
args: [--lr, 5e-5, --flag, true, no, 1.10, 007, 1_000, '{"a": {"b": 1}}', "{{x}}"]
device: npu
cards: 2
hosts: [npu-a, npu-b]
tags: [910b]
env: {EPOCHS: 3, RATE: 1e-05, ON: on, EMPTY: "", QUOTED: "it's $(id) `x`\\n"}
secrets: [WANDB_API_KEY]
runtime:
  python: python3.9
  venv: ~/envs/npu
  vendor: off
  migrate: true
  setup: ["export LD_LIBRARY_PATH=/usr/local/neuware/lib64:$LD_LIBRARY_PATH"]
launcher: tmux
timeout: 12h
grace: 45s
priority: -3
after: [other-job-id, {job: second, when: any}]
retry: {max: 2, on: [exit, oom], backoff: 1m}
checkpoints: {paths: ["ckpt/*.pt"], keep: {last: 2, best: "val_loss min"}, pull: best}
resume_args: [--resume, "{checkpoint}", "--teacher={checkpoint:second}"]
carry: ["cache/"]
outputs: ["metrics.json", "plots/"]
metrics: {loss: 'loss[=: ]+([-+.0-9eE]+)', val_loss: {json: val.loss}, acc: {key: acc}, lr: {tensorboard: runs, tag: train/lr}}
"""

# A spec, and for each problem: line, column, a piece of its message, the suggestion.
BAD = [
    ("script: a.py\ndevice: npus\n", [(2, 9, "npu, mlu, gpu, musa or cpu", "npu")]),
    ("script: a.py\ndevice: cuda\n", [(2, 9, "'cuda'", "gpu")]),
    ("script: a.py\n", [(1, 1, "device is missing", "")]),
    ("device: npu\n", [(1, 1, "neither `script` nor `command`", "")]),
    ("script: a.py\ncommand: x\ndevice: npu\n", [(2, 1, "both", "")]),
    ("scirpt: a.py\ndevice: npu\n", [(1, 1, "'scirpt' is not known", "script"), (1, 1, "neither", "")]),
    ("command: x\ndevice: npu\ngpus: 2\n", [(3, 1, "'gpus'", "cards")]),
    ("command: x\ndevice: cpu\ncards: 1\n", [(3, 8, "cpu job has no cards", "")]),
    ("command: x\ndevice: npu\ncards: -1\n", [(3, 8, "0 to 4096", "")]),
    ("command: x\ndevice: npu\ncards: two\n", [(3, 8, "how many cards", "")]),
    ("command: x\ndevice: npu\ncards: true\n", [(3, 8, "found true", "")]),
    ("command: x\ndevice: npu\ncards: [1, x, 1]\n", [(3, 12, "found 'x'", "")]),
    ("command: x\ndevice: npu\ncards: [1, 2, 1]\n", [(3, 15, "twice", "")]),
    ("command: x\ndevice: npu\ncards: []\n", [(3, 8, "empty list", "")]),
    ("command: x\ndevice: npu\ntimeout: 12 hours\n", [(3, 10, "12 hours", "12h")]),
    ("command: x\ndevice: npu\ntimeout: 90\n", [(3, 10, "the number 90", "90s")]),
    ("command: x\ndevice: npu\ntimeout: 0s\n", [(3, 10, "nothing", "")]),
    ("command: x\ndevice: npu\ngrace: -1s\n", [(3, 8, "no length of time", "")]),
    ("command: x\ndevice: npu\nenv: {A: null, B: , C: 1}\n", [(3, 10, "null", ""), (3, 16, "null", "")]),
    ("command: x\ndevice: npu\nenv: {1A: x}\n", [(3, 7, "digit", "")]),
    ("command: x\ndevice: npu\nenv: {JOBRUNNER_ATTEMPT: 1}\n", [(3, 7, "JOBRUNNER_", "")]),
    ("command: x\ndevice: npu\nenv:\n  MLU_VISIBLE_DEVICES: 0\n", [(4, 3, "may not be set", "")]),
    ("command: x\ndevice: npu\nenv:\n", [(3, 1, "has no value", "")]),
    ('command: x\ndevice: npu\nenv: {A: "a\\0b"}\n', [(3, 10, "NUL", "")]),
    ("command: [echo, ~, {lr}, [1]]\ndevice: npu\n", [
        (1, 17, "null", ""), (1, 20, "without quotes", '"{lr}"'), (1, 26, "a list", "")]),
    ("command: []\ndevice: npu\n", [(1, 10, "empty", "")]),
    ("command: ' '\ndevice: npu\n", [(1, 10, "empty", "")]),
    ("command: 5\ndevice: npu\n", [(1, 10, "the number 5", "")]),
    ("command: x\nargs: [a]\ndevice: npu\n", [(2, 1, "args would be lost", "")]),
    ("command: x\nresume_args: [a]\ncheckpoints: {paths: [a]}\ndevice: npu\n", [(2, 1, "JOBRUNNER_RESUME_FROM", "")]),
    ("script: a.py\nresume_args: [a]\ndevice: npu\n", [(2, 1, "never used", "")]),
    ("script: a.py\ncode: null\ndevice: npu\n", [(1, 9, "`code` is null", "")]),
    ("script: ../a.py\ndevice: npu\n", [(1, 9, "climbs out", "")]),
    ("script: /a.py\ndevice: npu\n", [(1, 9, "not relative", "")]),
    ("command: x\ndevice: npu\noutputs: [a/../b, ~/x, '']\n", [
        (3, 11, "climbs", ""), (3, 19, "not relative", ""), (3, 24, "empty", "")]),
    ("command: x\ndevice: npu\nname: ''\n", [(3, 7, "empty", "")]),
    ("command: x\ndevice: npu\nname: 7\n", [(3, 7, "quotes", "")]),
    ('command: x\ndevice: npu\nname: "a\\nb"\n', [(3, 7, "cannot be printed", "")]),
    (f"command: x\ndevice: npu\nname: {'n' * 201}\n", [(3, 7, "201", "")]),
    ("command: x\ndevice: npu\nhosts: npu-a\n", [(3, 8, "[npu-a]", "")]),
    ("command: x\ndevice: npu\nhosts: [a, a, -b]\n", [(3, 15, "'-b'", "")]),
    ("command: x\ndevice: npu\nhosts: [a, a]\n", [(3, 12, "twice", "")]),
    ("command: x\ndevice: npu\nruntime: {venv: a, conda: b}\n", [(3, 20, "exclude each other", "")]),
    ("command: x\ndevice: npu\nruntime: {docker: {imgae: b}}\n", [
        (3, 11, "runtime.docker.image is missing", ""), (3, 20, "'imgae'", "image")]),
    ("command: x\ndevice: npu\nruntime: {docker: {image: b, mounts: [/a]}}\n", [(3, 39, "HOST:CONTAINER", "")]),
    ("command: x\ndevice: npu\nruntime: {vendor: of}\n", [(3, 19, "auto or off", "off")]),
    ("command: x\ndevice: npu\nruntime: {migrate: yes}\n", [(3, 20, "true or false", "")]),
    ("command: x\ndevice: npu\nlauncher: screen\n", [(3, 11, "nohup or tmux", "")]),
    ("command: x\ndevice: npu\nretry: 3\n", [(3, 8, "mapping", "")]),
    ("command: x\ndevice: npu\nretry: {max: 2.5, on: [timeuot]}\n", [
        (3, 14, "whole number", ""), (3, 24, "timeuot", "timeout")]),
    ("command: x\ndevice: npu\nafter: [{job: a, when: never}]\n", [(3, 24, "ok, any or failed", "")]),
    ("command: x\ndevice: npu\nafter: [a, a]\n", [(3, 12, "twice", "")]),
    ("command: x\ndevice: npu\ncheckpoints: {keep: 0}\n", [(3, 21, "at least 1", "")]),
    ("command: x\ndevice: npu\ncheckpoints: {keep: {best: loss}}\n", [(3, 28, "direction", "")]),
    ("command: x\ndevice: npu\ncheckpoints: {pull: best}\n", [(3, 21, "which is best", "")]),
    (
        "command: x\ndevice: npu\nmetrics:\n  a: {file: ../x, key: a}\n  b: {tensorboard: runs}\n"
        "  c: {json: a, file: b}\n  d: {jsn: a}\n  e: 5\n  f: {}\n  g: {json: 5}\n  h: {file: x}\n",
        [
            (4, 13, "climbs out", ""),
            (5, 7, "tag is missing", ""),
            (6, 16, "exclude each other", ""),
            (7, 7, "'jsn' is not known", "json"),
            (8, 6, "write a regular expression", ""),
            (9, 6, "the mapping is empty", ""),
            (10, 13, "put it in quotes", ""),
            (11, 7, "key is missing", ""),
        ],
    ),
    ("command: x\ndevice: npu\nmetrics: {a: '(', b: x}\n", [(3, 14, "no regular", ""), (3, 22, "no group", "")]),
    ("command: x\ndevice: npu\nsecrets: [A]\nenv: {A: x}\n", [(3, 11, "`env` too", "")]),
    ("command: x\ndevice: npu\npriority: high\n", [(3, 11, "whole number", "")]),
    ("script: a.py\ndevice: npu\nargs: ['{checkpoint:b}']\nafter: [c]\n", [(3, 8, "needs 'b' in `after`", "")]),
    ("script: a.py\ndevice: npu\ncheckpoints: {paths: [a]}\nresume_args: ['{checkpont}']\n", [
        (4, 15, "checkpont", "checkpoint")]),
    ("command: x\ndevice: npu\nschedule: {cron: '@daily', timezone: UTC}\n", [(3, 1, "jobrunner schedule add", "")]),
    ("command: x\ndevice: npu\nmetrics: {a: '(.)'}\npromote: {metric: a max, to: m}\n", [(4, 1, "names no files", "")]),
    ("command: x\ndevice: npu\nmetrics: {a: '(.)'}\ncheckpoints: {paths: [m]}\npromote: {metric: a max, to: m/../n}\n", [
        (5, 30, "'..'", "")]),
    ("- a\n", [(1, 1, "mapping", "")]),
    ("script: a.py\ndevice: npu\ndevice: gpu\n", [(3, 1, "second time", "")]),
]  # fmt: skip

HOSTS = """\
ssh_config: ~/.ssh/cluster
settings: {connect_timeout: 5s, request_timeout: 1m, retry_for: 90s}
hosts:
  npu-a:
    address: ml@10.0.0.5:2222
    device: npu
    cards: 8
    only_cards: [3, 0, 1, 2]
    max_cards: 4
    cpu_jobs: 8
    tags: [910b, room2]
    root: ~/.jobrunner
    python: python3
    setup: ["source /usr/local/Ascend/ascend-toolkit/set_env.sh"]
    env: {HCCL_IF_IP: 10.0.0.5, DEBUG: 007}
    launcher: nohup
    on_reboot: none
  plain:
"""
