#!/usr/bin/env python3
"""Takes process ids that were somebody else's: `strangers.py PID…`, run in the host's pid namespace, as root.

Each stranger leads a session of its own and has a child in it, as any program of the same user might. Prints a line of
JSON, the pids that it got, and lives until it is killed. A pid that somebody has, or that others are quicker to get, is
left out.
"""

import json
import os
import sys
import time

PATIENCE_S = 2.0  # for whoever had it to be collected by its parent


def occupy(pid, wait, go):
    """Fork until the child has that pid. True if it has. Its own child comes once all pids are given: it takes the next."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if os.path.exists(f"/proc/{pid}"):
            time.sleep(0.005)
            continue
        with open("/proc/sys/kernel/ns_last_pid", "w") as stream:
            stream.write(str(pid - 1))
        child = os.fork()
        if not child:
            if os.getpid() != pid:
                os._exit(0)
            os.setsid()
            os.close(go)
            os.read(wait, 1)
            os.fork()
            while True:
                time.sleep(60)
        if child == pid:
            return True
        os.waitpid(child, 0)
    return False


ends = os.pipe()
got = [pid for pid in map(int, sys.argv[1:]) if occupy(pid, *ends)]
os.close(ends[1])
print(json.dumps(got), flush=True)
while True:
    time.sleep(60)
