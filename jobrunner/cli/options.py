"""Arguments and options that several commands share, and how their values are completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer


def complete_jobs(incomplete: str) -> list[str]:
    """Ids and names that begin so, from the ledger alone: no host is asked. Nothing ever goes wrong aloud."""
    try:
        from jobrunner.service.session import open_session

        with open_session() as session:
            if not (session.home / "ledger.db").exists():
                return []
            return session.ledger.completion_ids(incomplete)
    except Exception:  # a shell that completes a word must not show a traceback
        return []


def complete_hosts(incomplete: str) -> list[str]:
    """Hosts of the hosts file and the ledger that begin so."""
    try:
        from jobrunner.service.session import open_session

        with open_session() as session:
            return [name for name in session.known_aliases() if name.startswith(incomplete)]
    except Exception:  # see complete_jobs
        return []


def complete_rows(incomplete: str, rows: Callable[[Any], Iterable[Any]]) -> list[str]:
    """Ids and names of rows of the ledger that begin so; no host is asked."""
    try:
        from jobrunner.service.session import open_session

        with open_session() as session:
            if not (session.home / "ledger.db").exists():
                return []
            words = [word for row in rows(session.ledger) for word in (row.id, row.name)]
            return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
    except Exception:  # see complete_jobs
        return []


def complete_sweeps(incomplete: str) -> list[str]:
    """Ids and names of sweeps that begin so."""
    return complete_rows(incomplete, lambda ledger: ledger.sweeps.list())


_ID_HELP = "A job's id, a unique beginning of it, or a name (its newest job)."

Id = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, show_default=False, autocompletion=complete_jobs)]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help=_ID_HELP, show_default=False, autocompletion=complete_jobs)
]
HostNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST", help="Hosts; default: every known one.", show_default=False, autocompletion=complete_hosts
    ),
]
SomeHosts = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST", help="Hosts.", show_default=False, autocompletion=complete_hosts),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="H", help="Only jobs of this host.", show_default=False, autocompletion=complete_hosts
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="H",
        help="Where to: a host of the hosts file, or any SSH alias.",
        show_default=False,
        autocompletion=complete_hosts,
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="DIR", help="Where the files go; default: a folder of the job's own.", show_default=False
    ),
]
SweepId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A sweep's id, a unique beginning of it, or a name (its newest sweep).",
        show_default=False,
        autocompletion=complete_sweeps,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no host; show what is remembered.")]
