"""A process that has imported jobrunner already and forks for each command: real processes without the start-up time.

Reads lines of JSON `{"key", "argv", "env", "cwd", "out", "err"}` on standard input; answers with lines
`{"key", "pid"}` and, when it has ended, `{"key", "code"}` (a signal is negative, as in subprocess).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import sys

HEAVY = ("fabric", "paramiko", "pydantic", "rich", "sqlite_utils", "ruamel.yaml", "pathspec", "jobrunner.cli.app")


def load() -> None:
    """Import all that commands use, without starting a thread."""
    import jobrunner

    for name in HEAVY:
        importlib.import_module(name)
    for part in ("core", "ledger", "upload", "transport", "service", "cli"):
        package = importlib.import_module(f"jobrunner.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    assert jobrunner.__name__
    gc.collect()
    gc.freeze()


def child(request: dict, inherited: tuple[int, ...]) -> None:
    """Become a command: its own output files, environment and folder. Does not return."""
    code = 70
    try:
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        for descriptor in inherited:
            os.close(descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for path, number in ((request["out"], 1), (request["err"], 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), number)
        os.closerange(3, 64)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["jobrunner", *request["argv"]]
        from jobrunner.cli import main

        try:
            main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        import threading

        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass
        os._exit(code)


def main() -> None:
    load()
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keys: dict[int, str] = {}
    unread = b""

    def say(**message: object) -> None:
        os.write(1, json.dumps(message).encode() + b"\n")

    say(ready=True)
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if not pid:
                    break
                say(key=keys.pop(pid, ""), code=os.waitstatus_to_exitcode(status))
        if 0 in ready:
            data = os.read(0, 1 << 20)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if not pid:
                    child(request, (wake, waker))
                keys[pid] = request["key"]
                say(key=request["key"], pid=pid)


if __name__ == "__main__":
    main()
