"""The job of the scenarios: it writes down outside of jobrunner's folders what really happened to it."""

import hashlib
import json
import os
import signal
import sys
import time

PLAN = json.loads(os.environ["PLAN"])
ATTEMPT = int(os.environ["JOBRUNNER_ATTEMPT"])


def mark(*words):
    handle = os.open(
        os.path.join(os.environ["MARKS"], os.environ["JOBRUNNER_JOB_ID"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    os.write(handle, (" ".join(str(word) for word in words) + "\n").encode())
    os.close(handle)


def content(number):
    """Bytes of a checkpoint, which its own number determines."""
    return hashlib.sha512("{} {}".format(PLAN["seed"], number).encode()).digest() * PLAN["checkpoint_blocks"]


def save(number):
    folder = os.path.join(os.environ["JOBRUNNER_OUTPUT_DIR"], "ckpt")
    os.makedirs(folder, exist_ok=True)
    aside = os.path.join(folder, "aside")
    with open(aside, "wb") as stream:
        stream.write(content(number))
    now = time.time()
    os.utime(aside, (now, now))  # as a host's file system does, whose clock is the one that is set
    os.rename(aside, os.path.join(folder, f"step-{number:04d}.bin"))


def stray():
    """A grandchild in a session of its own that holds nothing of ours but its environment."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if PLAN["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    time.sleep(300)
    os._exit(0)


def main():
    mark("start", ATTEMPT, os.getpid(), time.monotonic())
    resumed = os.environ.get("JOBRUNNER_RESUME_FROM")
    if resumed:
        with open(resumed, "rb") as stream:
            whole = stream.read() == content(int(resumed[-8:-4]))
        mark("resume", ATTEMPT, os.path.basename(resumed), "whole" if whole else "torn")
    if PLAN["stray"]:
        stray()
    if PLAN["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = PLAN["ends"][min(ATTEMPT, len(PLAN["ends"])) - 1]
    for number in range(PLAN["lines"]):
        sys.stdout.write("attempt {} line {} {}\n".format(ATTEMPT, number, "\u8bad\u7ec3\r\x1b[32m\0" * (number % 5)))
        sys.stdout.flush()
        if number % PLAN["every"] == PLAN["every"] - 1:
            save(number)
        time.sleep(PLAN["pace"])
    if end == "hang":
        while True:
            time.sleep(1)
    mark("end", ATTEMPT, end, time.monotonic())
    if isinstance(end, str):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), getattr(signal, end))
    os._exit(end)


try:
    main()
except OSError as error:
    try:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    except OSError:
        pass
    mark("end", ATTEMPT, 7, time.monotonic())
    os._exit(7)
