"""`python -m tests.faults N [SEED]`: play so many scenarios from a seed on, and say what came out."""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.faults.host import NAMESPACES, end_all_hosts
from tests.faults.play import Play, Story
from tests.faults.scenario import draw


def main() -> int:
    """Exit code 1 if any invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at a time")
    parser.add_argument("--quick", action="store_true", help="without what takes long to be noticed (black holes)")
    given = parser.parse_args()
    if not NAMESPACES:
        print("not root: no reboots, no full and no read-only disks, no reused pids", file=sys.stderr)
    top = Path(tempfile.mkdtemp(prefix="jobrunner-faults-"))
    from tests.faults.agents import prepare

    agents = prepare(top / "agents")
    began, failures, fired = time.monotonic(), [], collections.Counter[str]()

    def one(seed: int) -> Story:
        return Play(draw(seed, namespaces=NAMESPACES, slow=not given.quick), top / str(seed), agents).run()

    def break_off(*_: object) -> None:
        end_all_hosts()
        os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, break_off)
    with ThreadPoolExecutor(given.jobs) as pool:
        futures = {pool.submit(one, seed): seed for seed in range(given.seed, given.seed + given.count)}
        for done, future in enumerate(as_completed(futures), 1):
            seed = futures[future]
            try:
                fired.update(future.result().fired)
                shutil.rmtree(top / str(seed), ignore_errors=True)
            except AssertionError as error:
                failures.append(seed)
                print(f"\nFAILED {error}\nfiles: {top / str(seed)}", flush=True)
            if done % 10 == 0 or done == given.count:
                print(f"{done} of {given.count}, {len(failures)} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"faults: {sum(fired.values())}: " + ", ".join(f"{name} {count}" for name, count in fired.most_common()))
    if failures:
        print(f"failed seeds: {' '.join(map(str, sorted(failures)))} (files in {top})")
        return 1
    shutil.rmtree(top, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
