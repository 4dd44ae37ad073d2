"""Checks of this machine, of hosts and of the way to them: each says what was found, and what mends it.

`asking` gathers facts (from the agent's `look` and `probe`) and hands them to rules, which are pure functions listed
in one table (`table`). `ok` is None where something could not be found out or is wrong for some jobs only.
"""

from jobrunner.service.doctor.asking import doctor, examine
from jobrunner.service.doctor.finding import Check

__all__ = ["Check", "doctor", "examine"]
