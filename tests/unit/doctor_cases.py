"""What goes wrong on a host, one case a line: the check, the facts that show it, and what it has to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jobrunner.core.errors import AgentError

from .doctor_facts import MISSING, card


@dataclass(frozen=True)
class Case:
    """`check` has to give `ok` and say `word` (in what was found or in the remedy), given these changes of facts."""

    check: str
    ok: bool | None
    word: str
    changes: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    declared: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.check}: {self.word}"


def bad(check: str, word: str, *, stops: bool = False, entry: dict[str, Any] | None = None, **changes: Any) -> Case:
    """A case in which something is wrong."""
    return Case(check, False, word, changes, stops, entry or {})


def unsure(check: str, word: str, *, entry: dict[str, Any] | None = None, **changes: Any) -> Case:
    """A case in which it cannot be known, or depends on the job."""
    return Case(check, None, word, changes, False, entry or {})


def good(check: str, word: str, *, entry: dict[str, Any] | None = None, **changes: Any) -> Case:
    """A case other than the healthy host's in which nothing is wrong."""
    return Case(check, True, word, changes, False, entry or {})


GIB = 2**30
SESSION = [
    bad("channels", "MaxSessions", sessions={"asked": 4, "opened": 2, "full": True, "error": "refused"}),
    unsure("channels", "link died", sessions={"asked": 4, "opened": 1, "full": False, "error": "link died"}),
    unsure("channels", "not tried", sessions={}),
    bad("shell", "case $- in", notes=["the login shell of npu-a prints text (~/.bashrc): 'Welcome'"]),
    bad("login shell", "restricted", probe__shell="/bin/rbash"),
    good("login shell", "bash all the same", probe__shell="/usr/bin/fish"),
    unsure("login shell", "does not say", probe__shell=""),
    bad("bash", "install bash", stops=True, probe__programs={"bash": None}),
    bad("python modules", "_ctypes", stops=True, probe__modules={"missing": ["_ctypes"], "unused": []}),
    bad("agent", "not aaaa", host__agent="b" * 16),
    unsure("agent", "gc npu-a", probe__own__agents=40),
    bad("agent", "no space left for it", stops=True, probe={}, probe_error=AgentError("no space left for it")),
    unsure("tmux", "install tmux", probe__tmux={"path": None, "version": None, "error": None}),
    bad("tmux", "install tmux", stops=True, entry={"launcher": "tmux"}, probe__tmux__path=None),
    bad("tmux", "does not run", probe__tmux__error="lib not found"),
    bad("tmux", "does not run", stops=True, entry={"launcher": "tmux"}, probe__tmux__error="lib not found"),
    bad("tmux", "2.1 or newer", probe__tmux__version="tmux 1.8"),
    good("tmux", "next-3.4", probe__tmux__version="tmux next-3.4"),
    bad("logout", "enable-linger", stops=True, probe__login__kill_user_processes=True),
    good("logout", "linger", probe__login={"kill_user_processes": True, "linger": True, "logind": True}),
    bad("clock", "+61.0 s", skew_s=61.0),
    bad("clock", "-7.0 s", skew_s=-7.0),
    unsure("clock", "did not tell", skew_s=None),
    unsure("locale", "C.UTF-8", probe__locale__LANG=None),
    bad("locale", "zh_CN.GBK", probe__locale__LANG="zh_CN.GBK"),
    unsure("locale", "POSIX", probe__locale__LANG="POSIX"),
    good("locale", "en_US.UTF-8", entry={"env": {"LANG": "en_US.UTF-8"}}, probe__locale__LANG="C"),
    good("locale", "for Python", entry={"env": {"PYTHONUTF8": "1"}}, probe__locale__LANG=None),
]

STORAGE = [
    bad("root access", "chmod 700", probe__root_access__mode=0o755),
    bad("root access", "belongs to user 0", stops=True, probe__root_access__uid=0),
    bad("root access", "replace what your jobs run", probe__root_access__loose=["/data"]),
    bad("noexec", "mounted noexec", probe__root__noexec=True),
    unsure("noexec", "not be tried", probe__root__noexec=None),
    bad("storage", "quota is used up", stops=True,
        probe__storage={"ok": False, "errno": "EDQUOT", "text": "Disk quota exceeded"}),
    bad("storage", "gc npu-a", stops=True, probe__storage={"ok": False, "errno": "ENOSPC", "text": "No space left"}),
    bad("storage", "read-only", stops=True, probe__storage={"ok": False, "errno": "EROFS", "text": "Read-only"}),
    bad("storage", "dmesg", stops=True, probe__storage={"ok": False, "errno": "EIO", "text": "Input/output error"}),
    bad("storage", "overloaded", probe__storage__seconds=9.0),
    bad("disk", "gc npu-a", stops=True, probe__disk__free_bytes=10**8),
    bad("disk", "3.0 GB free", probe__disk__free_bytes=3 * 2**30),
    bad("inodes", "12 files", stops=True, probe__disk__files_free=12),
    bad("inodes", "9,000 files", probe__disk__files_free=9000),
    good("inodes", "without a limit", probe__disk__files_free=None),
    bad("quota", "larger quota", stops=True, probe__quota__rows=[
        {"filesystem": "/dev/sda1", "blocks": [100, 90, 100], "files": [1, 0, 0], "over": True}]),
    bad("quota", "/home", probe__quota__rows=[
        {"filesystem": "/home", "blocks": [98, 0, 100], "files": [1, 0, 0], "over": False}]),
    bad("quota", "1000 files", stops=True, probe__quota__rows=[
        {"filesystem": "/home", "blocks": [1, 0, 0], "files": [1000, 900, 1000], "over": True}]),
    good("quota", "far from", probe__quota__rows=[
        {"filesystem": "/home", "blocks": [1, 90, 100], "files": [1, 0, 0], "over": False}]),
    unsure("quota", "no answer", probe__quota={"tool": "/usr/bin/quota", "rows": [], "error": "no answer in time"}),
    good("quota", "no `quota`", probe__quota={"tool": None, "rows": []}),
    unsure("network home", "local disk", probe__root={"path": "/nfs/ml", "filesystem": "nfs4", "network": True}),
    good("shared root", "npu-b", probe__others=[{"instance": "i2", "hostname": "npu-b"}]),
    unsure("shared root", "same name", probe__others=[{"instance": "i2", "hostname": "npu-a"}]),
    bad("home", "does not exist", probe__home__there=False),
    bad("home", "cannot be written", probe__home__writable=False),
    bad("home", "make room", probe__home__free_bytes=10**6),
    bad("tmp", "chmod 1777", stops=True, probe__tmp__writable=False),
    bad("tmp", "may remove your files", probe__tmp__sticky=False),
    bad("tmp", "TMPDIR", probe__tmp__free_bytes=1000),
    bad("share", "pass them over", probe__tmp__share_ours=False),
    good("share", "is free", probe__tmp__share_ours=None),
    bad("shared memory", "--shm-size", probe__shm__total_bytes=64 * 2**20),
    bad("shared memory", "left in /dev/shm", probe__shm__free_bytes=10**6),
    bad("shared memory", "--ipc host", probe__shm={"there": False}),
]  # fmt: skip

KERNEL = [
    bad("memory", "killed at once", stops=True, probe__memory__available_bytes=10**8),
    bad("memory", "1.0 GB", probe__memory__available_bytes=2**30),
    bad("memory", "by the control group", probe__memory__group_limit_bytes=2 * GIB,
        probe__memory__group_free_bytes=GIB),
    unsure("memory", "does not tell", probe__memory__available_bytes=None),
    unsure("memory limit", "MemoryMax", probe__memory__group_limit_bytes=8 * GIB,
           probe__memory__group_free_bytes=8 * GIB),
    unsure("open files", "ulimit -n 1048576", probe__limits__limits__nofile=[1024, 1048576]),
    bad("open files", "limits.conf", probe__limits__limits__nofile=[1024, 1024]),
    bad("processes", "pids.max", stops=True, probe__limits__limits__nproc=[4096, 4096], probe__limits__processes=4090),
    bad("processes", "40 of 300", probe__limits__pids_max=300),
    good("processes", "without a limit", host__uid=0, probe__limits__limits__nproc=[50, 50]),
    unsure("locked memory", "RDMA", probe__limits__limits__memlock=[65536, 65536]),
    unsure("locked memory", "ulimit -l", probe__limits__limits__memlock=[65536, None]),
    unsure("core dumps", "ulimit -c 0", probe__limits__limits__core=[None, None]),
    good("core dumps", "systemd-coredump", probe__limits__limits__core=[None, None],
         probe__limits__core_pattern="|/usr/lib/systemd-coredump %P"),
    unsure("other processes", "hidepid=2", probe__proc={"hidepid": "2", "sees_first": False, "root": False}),
    unsure("other processes", "hidden", probe__proc={"hidepid": None, "sees_first": False, "root": False}),
    good("other processes", "can be seen", probe__proc={"hidepid": "2", "sees_first": True, "root": True}),
    bad("init", "--init", probe__init__reaps=False),
    bad("init", "5000 zombies", probe__init__zombies=5000),
    unsure("init", "could not be seen", probe__init__reaps=None),
    bad("user ids", "/etc/passwd", probe__users__name=None),
    unsure("user ids", "mapped", probe__users__mapped=True),
    bad("leases", "cannot be taken", stops=True, probe__leases={"binds": False, "shows": False, "excludes": False}),
    bad("leases", "do not exclude", stops=True, probe__leases__excludes=False),
    bad("leases", "are not seen", stops=True, probe__leases__shows=False),
    unsure("lease space", "--network host", probe__container=True, probe__leases__private_network=None),
    unsure("lease space", "name space of its own", probe__leases__private_network=True),
    unsure("notifications", "seconds longer", probe__notify=False),
    bad("ports", "ss -ltn", stops=True, probe__ports__free_ranges=1),
    unsure("ports", "ip_local_reserved_ports", probe__ports__handed_out=[1024, 65000]),
    unsure("usual ports", "29500", probe__ports__torch_busy=[29500]),
    unsure("usual ports", "60003", probe__ports__hccl_busy=[60003]),
    unsure("network", "HF_HUB_OFFLINE", probe__network__default_route=False),
    unsure("network", "no_proxy", probe__network__proxies=["http_proxy"]),
    good("network", "offline is said", probe__network__default_route=False, probe__network__offline=["HF_HUB_OFFLINE"]),
    good("network", "HF_ENDPOINT", probe__network__mirror=["HF_ENDPOINT"]),
    unsure("queue", "please report", probe__own__log="Traceback", probe__own__log_age_s=60),
    bad("queue", "; its log ends: OSError", probe__own__queued=2, probe__own__log="OSError"),
    bad("queue", "nobody watches j1abcdef", probe__own__unguarded=["j1abcdef"]),
    good("queue", "held", probe__own__queued=1, probe__own__held=1, probe__own__live=1),
    unsure("drained", "undrain npu-a", probe__own__drained=True),
    bad("on reboot", "no crontab", entry={"on_reboot": "crontab"}, probe__crontab={"tool": None, "allowed": None}),
    bad("on reboot", "not allowed", entry={"on_reboot": "crontab"}, probe__crontab__allowed=False,
        probe__crontab__said="ml is not allowed to use crontab"),
    bad("on reboot", "no cron runs", entry={"on_reboot": "crontab"}, probe__crontab__running=False),
    good("on reboot", "crontab", entry={"on_reboot": "crontab"}),
]  # fmt: skip


def trouble(code: str, message: str) -> dict[str, Any]:
    """A card report without cards."""
    return {"device": "npu", "cards": [], "tool_s": 0.1, "assumed": False,
            "error": {"code": code, "message": message, "remedy": f"mend {code}"}}  # fmt: skip


def closed(**changes: Any) -> dict[str, Any]:
    """One device file that this session may not open."""
    return {"path": "/dev/davinci0", "mode": 0o660, "group": "HwHiAiUser", "ours": False, **changes}


NODE = "/dev/davinci_manager"
CARDS = [
    bad("vendor tool", "mend tool_missing", stops=True, cards=trouble("tool_missing", "npu-smi is not on the PATH")),
    unsure("vendor tool", "not asked", cards__assumed=True, entry={"cards": 2}),
    bad("tool answers", "no answer within 10 s", stops=True, cards=trouble("tool_hangs", "no answer within 10 s")),
    bad("tool answers", "-8020", stops=True, cards=trouble("cards_in_container", "held (-8020)")),
    bad("tool answers", "dmesg", cards__tool_s=8.5),
    unsure("tool answers", "no tool", cards=trouble("tool_missing", "not there")),
    bad("tool libraries", "libc_sec", stops=True, cards=trouble("library_missing", "libc_sec.so: cannot open")),
    unsure("tool libraries", "that far", cards=trouble("tool_hangs", "hangs")),
    bad("cards", "mend tool_hangs", stops=True, cards=trouble("tool_hangs", "hangs")),
    bad("cards", "device: cpu", stops=True, cards={"device": "npu", "cards": [], "error": None}),
    unsure("cards", "device: cpu", entry={"device": None}, cards={"device": None, "cards": [], "error": None}),
    good("cards", "hosts file says", entry={"device": "cpu"}, cards=None),
    bad("declared cards", "says mlu, the host has npu", stops=True, entry={"device": "mlu"}),
    bad("declared cards", "names 7; there are 0, 1", entry={"only_cards": [0, 7]}),
    bad("declared cards", "names 7, 8", stops=True, entry={"only_cards": [7, 8]}),
    bad("card health", "1 (Alarm)", cards__cards=[card(0), card(1, health="bad", health_text="Alarm")]),
    unsure("card health", "warnings on 0", cards__cards=[card(0, health="warning")]),
    unsure("card doubts", "0: partitioned", cards__cards=[card(0, doubts=["partitioned (MIG)"])]),
    unsure("card owners", "fuser -v", cards__cards=[card(0, why_busy="900 MB are in use and no process is shown (…)")]),
    unsure("device files", NODE, probe__nodes__files=[]),
    unsure("device files", "/dev/mtgpu.0 is not", entry={"device": "musa"}),
    good("docker runtime", "mthreads is", entry={"device": "musa"}, probe__runtimes__runtimes=["mthreads", "runc"]),
    bad("device access", "usermod -aG HwHiAiUser ml", stops=True, probe__nodes__files=[closed()],
        probe__groups={"session": ["ml"], "listed": ["ml"], "existing": [], "user": "ml"}),
    bad("device access", "log in again", stops=True, probe__nodes__files=[closed()],
        probe__groups={"session": ["ml"], "listed": ["HwHiAiUser", "ml"], "existing": [], "user": "ml"}),
    unsure("device access", "no device files", probe__nodes__files=[]),
    unsure("docker", "not installed", probe__docker__path=None),
    unsure("docker", "systemctl", probe__docker__error="Cannot connect", probe__runtimes__socket=None),
    unsure("docker", "docker group", probe__runtimes__socket={"ours": False, "group": "docker"}),
    bad("docker", "prune", probe__runtimes__root_free_bytes=10**9),
    bad("docker group", "log in again", probe__runtimes__socket={"ours": False, "group": "docker"}),
    unsure("docker group", "usermod -aG dockers ml", probe__runtimes__socket={"ours": False, "group": "dockers"}),
    unsure("docker runtime", "not needed", probe__runtimes__runtimes=["runc"]),
    bad("docker runtime", "nvidia-container-toolkit", entry={"device": "gpu"}, probe__runtimes__runtimes=["runc"]),
]  # fmt: skip

META = "probe__software__meta"
PLUGIN = "probe__software__plugin"
SOFTWARE = [
    bad("setup", "correct `setup`", stops=True, entry={"setup": ["false"]},
        probe__software={"late": None, "setup_error": "the setup failed with exit code 1 (exit code 1)"}),
    bad("setup", "by hand", stops=True, entry={"setup": ["sleep 9"]}, probe__software={"late": "set-up"}),
    good("setup", "nothing to run", probe__vendor__scripts=[]),
    unsure("vendor set-up", "set_env.sh", probe__vendor__scripts=[]),
    unsure("vendor set-up", "NEUWARE_HOME", entry={"device": "mlu"}),
    good("vendor set-up", "Neuware", entry={"device": "mlu"}, probe__vendor__toolkit="/usr/local/neuware"),
    unsure("vendor set-up", "MUSA_HOME", entry={"device": "musa"}),
    good("vendor set-up", "MUSA toolkit", entry={"device": "musa"}, probe__vendor__toolkit="/usr/local/musa"),
    unsure("conda", "CONDA_EXE", probe__vendor__conda=None),
    bad("job python", "no python3 for jobs",
        probe__software={"late": None, "meta": None, "python_error": "python3: No such file or directory"}),
    bad("job python", "disk that hangs", probe__software={"late": "python"}),
    unsure("job python", "failed before", probe__software={"late": None, "setup_error": "no"}),
    bad("versions", "made for torch 2.1.0", **{META + "__packages": {"torch": "2.5.1", "torch_npu": "2.1.0.post10"}}),
    bad("versions", "25.0.RC1 or newer", probe__drivers__toolkit="8.5.0", probe__drivers__driver="24.1.rc3"),
    bad("versions", "torch 2.3", **{META + "__packages": {"torch": "2.1.0", "numpy": "2.0.1"}}),
    unsure("versions", "not enough", cards__driver_version=None, **{META + "__packages": {}},
           probe__drivers={"driver": None, "toolkit": None}),
    unsure("plug-in", "torch is not installed", **{META + "__packages": {}}),
    unsure("plug-in", "torch_npu is not installed",
           **{PLUGIN: {"missing": "torch_npu", "error": "ModuleNotFoundError: No module named 'torch_npu'"}}),
    bad("plug-in", "driver/lib64/driver", **{PLUGIN + "__error": "ImportError: libascend_hal.so: cannot open"}),
    bad("plug-in", "set_env.sh", **{PLUGIN + "__error": "ImportError: libhccl.so: cannot open shared object file"}),
    bad("plug-in", "matched pair", **{PLUGIN + "__error": "OSError: libtorch_npu.so: undefined symbol: x"}),
    bad("plug-in", "signal 11", **{PLUGIN: {"error": "ended with signal 11"}}),
    bad("plug-in", "does not end", probe__software__late="import"),
    bad("plug-in", "does not end", **{PLUGIN: {"error": "no end within the limit"}}),
    bad("tensor", "does not end", probe__software__tensor={"card": 1, "error": "no end within the limit"}),
    bad("job python", "disk that hangs", **{META: None}, probe__software__python_error="no end within the limit"),
    bad("plug-in", "is_available() is False", **{PLUGIN + "__available": False}),
    unsure("plug-in", "no Python", **{META: None}),
    bad("tensor", "RuntimeError", probe__software__tensor={"card": 1, "value": None, "error": "RuntimeError: 507033"}),
    bad("tensor", "says 2+2+2+2 = 0.0", probe__software__tensor={"card": 1, "value": 0.0, "error": None}),
    bad("tensor", "does not end", probe__software__late="tensor", probe__software__tensor=None),
    unsure("tensor", "no card is free", probe__software__tensor={"card": None, "skipped": "no card is free"}),
    unsure("tensor", "does not see a card", probe__software__tensor=MISSING),
    bad("static TLS", "LD_PRELOAD: /v/libgomp.so", **{
        META + "__libgomp": ["/v/libgomp.so"],
        PLUGIN + "__error": "ImportError: /v/libgomp.so: cannot allocate memory in static TLS block"}),
    unsure("static TLS", "2 copies", **{META + "__libgomp": ["/v/a.so", "/v/b.so"]}),
]  # fmt: skip

CASES = [*SESSION, *STORAGE, *KERNEL, *CARDS, *SOFTWARE]
