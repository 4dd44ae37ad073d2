"""Timings beside what one would use instead: on hosts on loopback, both in the same run, turn by turn.

    python benchmarks/run.py [--only NAME]… [--rounds N] [--trips 0,50] [--rate MB_A_SECOND] [--mb 1000] [--write]

See README.md in this folder. Cards are simulated.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import following
import idling
import listing
import moving
import submitting
import sweeping
import turns
from places import Bench
from report import Report

PARTS: dict[str, Callable[[Bench], None]] = {
    "submit": submitting.ten_files,
    "shared": submitting.again,
    "files": submitting.many_files,
    "jobs": submitting.many_jobs,
    "handover": turns.handover,
    "ls": listing.live,
    "startup": listing.startup,
    "lag": following.lag,
    "logs": following.throughput,
    "end": following.ending,
    "pull": moving.pull,
    "upload": moving.upload,
    "small": moving.small_files,
    "queue": idling.queue,
    "memory": idling.memory,
    "grid": sweeping.grid,
    "trials": sweeping.short_trials,
    "tick": idling.ticks,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Timings beside what one would use instead; see benchmarks/README.md.")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part; may be given several times")
    parser.add_argument("--rounds", type=int, default=7, help="turns of what is quick (7); the rest has fewer")
    parser.add_argument("--trips", default="0,50", help="round trips in ms that are added (0,50)")
    parser.add_argument("--rate", type=float, default=0.0, help="MB a second that the longer ways carry (no limit)")
    parser.add_argument("--mb", type=int, default=1000, help="size of a big file in MB (1000)")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md after a part of the measures, too")
    return parser.parse_args()


def main() -> int:
    """Run the parts, print their rows, and after all of them write RESULTS.md. 1 if a part ended early."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends a run early leaves nothing behind either
    report, began, broken = Report(), time.monotonic(), False
    subprocess.run(["sh", str(HERE / "peers.sh")], check=False, timeout=600)
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="jobrunner-bench-") as place:
        Path(place).chmod(0o755)
        trips = tuple(float(word) for word in options.trips.split(","))
        bench = Bench(Path(place), report, options.rounds, trips, options.rate, options.mb)
        for name, part in PARTS.items():
            if options.only and name not in options.only:
                continue
            print(f"{name} …", file=sys.stderr, flush=True)
            started = time.monotonic()
            try:
                part(bench)
            except Exception as error:  # the other rows are worth having
                traceback.print_exc()
                report.failed(f"`{name}`", f"{type(error).__name__}: {error}")
                broken = True
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if not options.only or options.write:
        report.write(HERE / "RESULTS.md", (time.monotonic() - began) / 60)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
