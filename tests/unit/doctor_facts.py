"""Facts of a healthy host with simulated NPU cards, and a way to change them: what the doctor's tests start from."""

from __future__ import annotations

import copy
from typing import Any

from jobrunner.core.hosts import HostSpec
from jobrunner.core.inventory import Host

MISSING: Any = object()
"""As a change: the fact is not there at all."""


def card(index: int, **facts: Any) -> dict[str, Any]:
    """A free card, with changes."""
    plain = {"index": index, "health": "ok", "health_text": "OK", "free": True, "why_busy": None, "doubts": []}
    return {**plain, **facts}


_CARDS = {
    "device": "npu", "tool_version": "25.2.0", "driver_version": "25.2.0", "error": None, "tool_s": 0.4,
    "assumed": False, "cards": [card(0), card(1)],
}  # fmt: skip
_LIMITS = {"nofile": [65536, 65536], "nproc": [None, None], "memlock": [None, None], "core": [0, None]}
_PROBE = {
    "python": {"path": "/usr/bin/python3", "version": "3.9.9"},
    "tmux": {"path": "/usr/bin/tmux", "version": "tmux 3.3a", "error": None},
    "docker": {"path": "/usr/bin/docker", "version": "Docker version 28", "server": "28.0.1", "error": None},
    "disk": {"total_bytes": 10**13, "free_bytes": 10**12, "files_total": 10**8, "files_free": 10**7},
    "root": {"path": "/home/ml/.jobrunner", "filesystem": "ext4", "network": False, "noexec": False},
    "locale": {"LANG": "C.UTF-8", "LC_ALL": None, "LC_CTYPE": None},
    "login": {"kill_user_processes": False, "linger": False, "logind": True},
    "shell": "/bin/bash", "notify": True, "container": False, "others": [],
    "limits": {"limits": _LIMITS, "processes": 40, "core_pattern": "core", "pids_max": None},
    "memory": {"total_bytes": 10**12, "available_bytes": 9 * 10**11, "group_limit_bytes": None,
               "group_free_bytes": None},
    "proc": {"hidepid": None, "sees_first": True, "root": False},
    "init": {"first": "systemd", "reaps": True, "zombies": 0, "container": False},
    "users": {"mapped": False, "name": "ml", "uid": 1000},
    "ports": {"free_ranges": 4, "first": 20000, "last": 32000, "hccl_busy": [], "torch_busy": [],
              "handed_out": [32768, 60999]},
    "network": {"proxies": [], "spares_local": False, "offline": [], "mirror": [], "default_route": True},
    "storage": {"ok": True, "errno": None, "text": "", "seconds": 0.01},
    "root_access": {"path": "/home/ml/.jobrunner", "uid": 1000, "mode": 0o700, "own_uid": 1000, "loose": []},
    "quota": {"tool": "/usr/bin/quota", "rows": []},
    "home": {"path": "/home/ml", "there": True, "writable": True, "filesystem": "ext4", "network": False,
             "free_bytes": 10**12},
    "tmp": {"mode": 0o1777, "sticky": True, "writable": True, "share": "/tmp/.jobrunner-1-1000", "share_ours": True,
            "share_uid": None, "free_bytes": 10**11},
    "shm": {"there": True, "total_bytes": 10**11, "free_bytes": 10**11, "writable": True},
    "own": {"agent": "a" * 16, "agents": 1, "drained": False, "queued": 0, "held": 0, "live": 0, "dispatcher": False,
            "unguarded": [], "log": None, "log_age_s": None, "half_made": 0},
    "modules": {"missing": [], "unused": []},
    "leases": {"binds": True, "shows": True, "excludes": True, "private_network": False},
    "crontab": {"tool": "/usr/bin/crontab", "allowed": True, "said": "", "running": True},
    "programs": {"env": "/usr/bin/env", "git": None, "bash": "/bin/bash"},
    "nodes": {"device": "npu", "files": [
        {"path": path, "mode": 0o660, "group": "HwHiAiUser", "ours": True}
        for path in ("/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")]},
    "groups": {"session": ["HwHiAiUser", "docker", "ml"], "listed": ["HwHiAiUser", "docker", "ml"],
               "existing": ["HwHiAiUser", "docker"], "user": "ml"},
    "drivers": {"driver": "25.2.0", "firmware": "7.7.0.6.236", "toolkit": "8.2.RC1",
                "toolkit_path": "/usr/local/Ascend/ascend-toolkit/latest"},
    "vendor": {"scripts": ["/usr/local/Ascend/ascend-toolkit/set_env.sh"], "toolkit": None, "conda": "/opt/conda"},
    "runtimes": {"socket": {"ours": True, "group": "docker"}, "runtimes": ["ascend", "runc"],
                 "root": "/var/lib/docker", "root_free_bytes": 10**12, "error": None},
    "software": {
        "late": None, "step": "tensor", "setup_error": None, "python": "python3", "python_error": None,
        "meta": {"executable": "/usr/bin/python3", "version": "3.9.9", "machine": "aarch64", "libgomp": [],
                 "packages": {"torch": "2.5.1", "torch_npu": "2.5.1.post1", "numpy": "1.26.4"}},
        "plugin": {"torch": "2.5.1", "cuda": None, "available": True, "count": 2, "missing": None, "error": None,
                   "step": "is_available"},
        "tensor": {"card": 1, "value": 8.0, "error": None},
    },
    "seen_device": "npu",
}  # fmt: skip
_FACTS = {
    "host": {"user": "ml", "uid": 1000, "hostname": "npu-a", "agent": "a" * 16, "instance": "i1"},
    "agent": "a" * 16, "skew_s": 0.1, "notes": [], "sessions": {"asked": 4, "opened": 4, "full": False, "error": ""},
    "link": {"hostname": "10.0.0.5", "port": 22, "round_trip_ms": 1.0, "banner": "", "key_file": "/home/me/.ssh/known"},
    "cards": _CARDS, "disk": {"free_bytes": 10**12}, "probe": _PROBE,
}  # fmt: skip


def facts(**changes: Any) -> dict[str, Any]:
    """The healthy host's facts with changes: `probe__memory__available_bytes=5` sets that one."""
    found = copy.deepcopy(_FACTS)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place: Any = found
        for folder in folders:
            place = place[folder]
        if value is MISSING:
            del place[name]
        else:
            place[name] = value
    return found


def declared(**entry: Any) -> Host:
    """The host's entry in a hosts file."""
    return HostSpec.model_validate({"name": "npu-a", "device": "npu", **entry}).plain()
