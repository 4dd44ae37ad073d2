"""Facts about the Python that a job would get here: what is installed, whether the vendor's plug-in works, and one
tensor on a free card.

The environment is made as for a job, by vendors' and administrators' shell code that may hang or end: all of it runs
in a process of its own (`main`), which prints a line of JSON as soon as it knows something. At the limit the whole
group is killed, and what was printed stays known. While the card is tried, its lease is held by that process and by
the Python that uses the card.
"""

import json
import os
import sys
import time

from . import env, files, leases, procs
from .accelerators import KINDS
from .accelerators.ask import private_folder
from .layout import Layout, card_name
from .runtime import visible_devices

PACKAGES = ("torch", "numpy", "deepspeed", "deepspeed_mlu", "transformers", "accelerate")
PACKAGES += tuple(kind.plugin for kind in KINDS.values() if kind.plugin)
MARK = "@jobrunner@"
NO_END = "no end within the limit"
META_S, SETUP_S = 15.0, 15.0
LEAST_S = 5.0  # less is not enough for anything that imports torch

# The snippets run in a Python that is not ours: any version from 3 on.
_META = """
import glob, json, os, platform, re, sys
wanted, mark = sys.argv[1].split(","), sys.argv[2]
found, gomp = {}, []
for folder in sys.path:
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        continue
    for name in names:
        match = re.match(r"([A-Za-z0-9_.]+)-([^-]+?)(-py[0-9.]+.*)?[.](dist-info|egg-info)$", name)
        if match and match.group(1).lower().replace("-", "_") in wanted:
            found.setdefault(match.group(1).lower(), match.group(2))
    for pattern in ("*.libs", "torch/lib"):
        gomp += glob.glob(os.path.join(folder, pattern, "libgomp*"))
print(mark + json.dumps({"executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3])),
    "machine": platform.machine(), "packages": found, "libgomp": gomp[:10]}))
"""

_PLUGIN = """
import json, sys
device, plugin, mark = sys.argv[1:4]
out = dict.fromkeys(("torch", "cuda", "available", "count", "missing", "error"), None)
out["step"] = "import torch"
try:
    import torch
    out["torch"] = str(getattr(torch, "__version__", "?"))
    out["cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    if plugin:
        out["step"] = "import " + plugin
        __import__(plugin)
    out["step"] = "is_available"
    space = getattr(torch, device)
    out["available"] = bool(space.is_available())
    out["count"] = int(space.device_count())
except BaseException as error:
    out["error"] = (type(error).__name__ + ": " + str(error))[-600:]
    out["missing"] = getattr(error, "name", None) if isinstance(error, ImportError) else None
print(mark + json.dumps(out))
"""

_TENSOR = """
import json, sys
device, plugin, mark = sys.argv[1:4]
out = {"value": None, "error": None}
try:
    import torch
    if plugin:
        __import__(plugin)
    one = torch.ones(2, 2, device=device + ":0")
    out["value"] = float((one + one).cpu().sum().item())
except BaseException as error:
    out["error"] = (type(error).__name__ + ": " + str(error))[-600:]
print(mark + json.dumps(out))
"""


def software(context):
    """What `main` finds out until the limit, as one table; `late` names the step that took too long."""
    request = context.request
    order = {
        "device": context.device, "env": request.get("env") or {}, "setup": request.get("setup") or [],
        "python": request.get("job_python") or "python3", "root": files.to_text(context.layout.root),
        "instance": context.layout.instance, "tensor": bool(request.get("tensor", True)),
        "only_cards": request.get("only_cards"), "left_s": context.left_s - 1.0,
    }  # fmt: skip
    out = _in_group(json.dumps(order).encode(), context.deadline - 0.5)
    found = {"late": None}
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            found.update(json.loads(line[len(MARK) :]))
    found["late"] = None if found.pop("done", False) else found.get("step") or "start"
    return found


def _in_group(order, deadline):
    """The output of `main`, which is killed with all that it started when the deadline passes."""
    import signal
    import subprocess

    child = subprocess.Popen(
        procs.agent_argv("probe_python", []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd="/", start_new_session=True, close_fds=True,
    )  # fmt: skip
    try:
        try:
            return child.communicate(order, timeout=max(0.1, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            try:
                return child.communicate(timeout=2.0)[0]
            except subprocess.TimeoutExpired:
                return b""  # hangs in the driver: the kernel ends it when it can
    finally:
        for stream in (child.stdin, child.stdout):
            stream.close()


def main(argv):
    """Find out, step by step; the order comes as JSON on standard input."""
    order = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    ends = time.monotonic() + order["left_s"]
    folder = private_folder()
    try:
        _steps(order, ends, folder or b"/")
    finally:
        if folder:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _tell(**facts):
    os.write(1, (MARK + json.dumps(facts) + "\n").encode("ascii"))


def _steps(order, ends, folder):
    _tell(step="set-up")
    environment, problem = job_environment(order, folder)
    _tell(setup_error=problem)
    if environment is None:
        _tell(done=True)
        return
    _tell(step="python", python=order["python"])
    meta, problem = _python(order, environment, folder, _META, [",".join(PACKAGES), MARK], min(ends, _after(META_S)))
    _tell(meta=meta, python_error=problem)
    device = order["device"]
    if meta is not None and device in KINDS and "torch" in meta["packages"]:
        _tell(step="import")
        words = [KINDS[device].torch, KINDS[device].plugin or "", MARK]
        plugin, problem = _python(order, environment, folder, _PLUGIN, words, ends - 1.0)
        _tell(plugin=plugin or {"error": problem})
        if order["tensor"] and plugin and plugin.get("available") and ends - time.monotonic() > LEAST_S:
            _tell(step="tensor")
            _tell(tensor=try_card(order, environment, folder, words, ends - 1.0))
    _tell(done=True)


def _after(seconds):
    return time.monotonic() + seconds


def job_environment(order, folder):
    """`(environment, None)` as a job without conda or venv gets it, or `(None, why not)`."""
    table = env.session_part(dict(os.environb))
    table.update(env.as_bytes(order["env"]))
    home = table.setdefault(b"HOME", os.path.expanduser(b"~"))
    table.setdefault(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    table[b"ASCEND_PROCESS_LOG_PATH"] = folder  # else CANN leaves its log in the home folder
    device = order["device"]
    table = env.vendor_values(device, table)
    items = [(b"vendor", path, b"") for path in env.vendor_scripts(device, home)]
    items += [(b"line", files.to_bytes(line), b"") for line in order["setup"]]
    null = os.open(b"/dev/null", os.O_RDWR)
    kept = os.dup(1)
    try:
        os.dup2(null, 1)  # what set-up lines print is not ours
        return env.source(items, table, folder), None
    except env.SetupFailed as error:
        return None, "{} (exit code {})".format(error, error.code)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def _python(order, environment, folder, snippet, words, deadline, keep=()):
    """`(what the snippet told, None)` or `(None, why it told nothing)`."""
    import subprocess

    argv = [order["python"], "-c", snippet, *words]
    try:
        child = subprocess.Popen(
            [files.to_bytes(word) for word in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment, cwd=folder, close_fds=True, pass_fds=keep,
        )  # fmt: skip
    except OSError as error:
        return None, "{}: {}".format(order["python"], error.strerror)
    try:
        out, err = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None, NO_END
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :]), None
    said = err.decode("utf-8", "replace").strip()[-300:]
    how = "signal {}".format(-child.returncode) if child.returncode < 0 else "exit code {}".format(child.returncode)
    return None, "ended with {}{}".format(how, ": " + said if said else "")


def try_card(order, environment, folder, words, deadline):
    """One small sum on a free card, under its lease: `{card, value, error}`, or `{card: null, skipped: why}`."""
    from . import look

    layout = Layout(files.to_bytes(order["root"]), order["instance"])
    allowed = order["only_cards"]
    device = order["device"]
    report = look.card_report(layout, device, 0)
    free = [card["index"] for card in report["cards"] if card["free"] and (not allowed or card["index"] in allowed)]
    for index in reversed(free):  # jobs begin with the first ones
        lock = leases.bind(card_name(device, index))
        if lock is None:
            continue
        try:
            if not _still_free(layout, device, index):
                continue
            table = dict(environment)
            table.update(env.as_bytes(visible_devices(device, [index])))
            table.update(env.as_bytes(KINDS[device].extra))
            told, problem = _python(order, table, folder, _TENSOR, words, deadline, keep=(lock,))
            return dict(told or {"value": None, "error": problem}, card=index)
        finally:
            leases.release([lock])
    return {"card": None, "skipped": "no card is free"}


def _still_free(layout, device, index):
    """Looked at once more under the lease, as the dispatcher does: a process may have come before we had it."""
    from . import cards, starts

    if starts.keepers(layout, device, [index]):
        return False
    report = cards.judge(cards.read_cards(device), [], {})
    return any(card["index"] == index and card["free"] for card in report["cards"])
