"""When the program's own code began to run; `--timings` counts from here."""

from __future__ import annotations

import time

AT = time.perf_counter()
