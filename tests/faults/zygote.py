#!/usr/bin/env python3
"""A process that has imported jobrunner already and forks for each command: real processes without the start-up time.

Reads lines of JSON on standard input: `{"key", "argv", "env", "cwd", "out", "err"}` starts a command, `{"key", "signal"}`
signals one. Answers with lines `{"key", "pid"}` or `{"key", "error"}` and, when it has ended, `{"key", "code", "rss_kb"}` (a
signal is negative, as in subprocess). Only this process knows for sure whether a pid is still the command's, so it alone signals.
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
import time

HEAVY = ("fabric", "paramiko", "pydantic", "rich", "sqlite_utils", "ruamel.yaml", "pathspec", "jobrunner.cli.app")
TRIES = 20  # a fork that the kernel refuses for want of pids or memory is tried again for a second


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
        try:
            _end_of_child()
        finally:  # a signal that arrives just now must not make a second one of us
            os._exit(code)


def _end_of_child() -> None:
    import threading

    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass


def fork() -> int:
    """`os.fork`, tried again while the kernel has no room for a further process just now."""
    for tries_left in range(TRIES, -1, -1):
        try:
            return os.fork()
        except OSError:
            if not tries_left:
                raise
            time.sleep(0.05)
    raise AssertionError


class Zygote:
    """The loop, and who runs."""

    def __init__(self) -> None:
        self.wake, self.waker = os.pipe()
        for end in (self.wake, self.waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.told_to_end)
        self.running: dict[int, str] = {}

    @staticmethod
    def told_to_end(number: int, _: object) -> None:
        """Somebody wants us gone, and nobody should: say so where the harness finds it."""
        os.write(2, f"zygote {os.getpid()}: ended by signal {number} at {time.time():.3f}\n".encode())
        os._exit(128 + number)

    @staticmethod
    def say(**message: object) -> None:
        """One line, whole even beside a signal."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def reap(self) -> None:
        """Tell of the commands that have ended."""
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, spent = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.running:
                code = os.waitstatus_to_exitcode(status)
                self.say(key=self.running.pop(pid), code=code, rss_kb=spent.ru_maxrss)

    def serve(self, line: bytes) -> None:
        """Do what one line asks for."""
        request = json.loads(line)
        if "signal" in request:
            for pid, key in self.running.items():
                if key == request["key"]:
                    os.kill(pid, request["signal"])
            return
        try:
            pid = fork()
        except OSError as error:
            self.say(key=request["key"], error=f"it could not be forked: {error}")
            return
        if not pid:
            child(request, (self.wake, self.waker))
        self.running[pid] = request["key"]
        self.say(key=request["key"], pid=pid)

    def loop(self) -> None:
        """Serve until nobody can ask any more."""
        unread = b""
        self.say(ready=True)
        while True:
            ready, _, _ = select.select([0, self.wake], [], [])
            if self.wake in ready:
                self.reap()
            if 0 in ready:
                data = os.read(0, 1 << 20)
                if not data:
                    return
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self.serve(line)


if __name__ == "__main__":
    load()
    Zygote().loop()
