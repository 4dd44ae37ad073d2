"""Commands about hosts: the `hosts` group, cards, doctor, adopt, gc."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.hostviews import (
    card_table,
    check_table,
    doctor_lines,
    host_table,
    removed_table,
    silent_hosts,
    waiting_lines,
)
from jobrunner.cli.options import HostNames, SomeHosts
from jobrunner.cli.output import Output
from jobrunner.cli.views import job_table, plural
from jobrunner.cli.words import size, visible
from jobrunner.core.errors import HostKeyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobrunner.service.results import GcResult, HostAddResult, HostKeyOffer, HostsResult

Name = Annotated[str, typer.Argument(metavar="NAME", help="The host's alias.", show_default=False)]


def ls(out: Output) -> int:
    """List the hosts that are known. None is asked."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.ls(session)

        def text() -> None:
            out.table(host_table(result.hosts, output.now()))
            there = "" if session.hosts_file.exists() else " (not there yet; `jobrunner hosts add` writes it)"
            out.say(f"hosts file: {session.hosts_file}{there}")

        return _print_hosts(out, result, text)


def check(out: Output, names: HostNames = None) -> int:
    """Ask hosts whether they can run jobs."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.check(session, names or [])
        return _print_hosts(out, result, lambda: out.table(check_table(result.hosts)))


def drain(out: Output, names: SomeHosts = None) -> int:
    """Let none of my queued jobs start on these hosts. What runs goes on."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.drain(session, _some(names, "drain"))
        return _print_hosts(out, result, lambda: _drained_text(out, result))


def undrain(out: Output, names: SomeHosts = None) -> int:
    """Let my queued jobs start on these hosts again."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.undrain(session, _some(names, "undrain"))
        return _print_hosts(out, result, lambda: _drained_text(out, result))


def disconnect(out: Output, names: HostNames = None) -> int:
    """End the SSH connections that commands share (transport openssh). Jobs go on; so do your own `ssh` sessions."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.disconnect(session, names or [])

        def text() -> None:
            for host in result.hosts:
                ended = f"{plural(host['ended'], 'connection')} ended" if host["ended"] else "no connection is shared"
                out.line(f"{visible(host['name'])}  {ended}")
            if not result.hosts:
                out.say("no connection is shared")

        return out.result({"hosts": result.hosts}, result, text)


def _some(names: list[str] | None, verb: str) -> list[str]:
    if not names:
        raise UsageError(f"which host to {verb}?", remedy=f"name it: jobrunner hosts {verb} NAME")
    return names


def _print_hosts(out: Output, result: HostsResult, text: Callable[[], None]) -> int:
    def write() -> None:
        if result.hosts:
            text()
        elif not result.errors:
            out.say("no hosts are known yet: jobrunner hosts add ALIAS, with an alias of your SSH configuration")

    return out.result({"hosts": result.hosts}, result, write)


def _drained_text(out: Output, result: HostsResult) -> None:
    for host in result.hosts:
        if host.get("reachable") is not False:
            words = "drained: none of your queued jobs starts there" if host.get("drained") else "open for your jobs"
            out.line(f"{visible(host.get('name'))}  {words}")


def add(
    out: Output,
    name: Name,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="[USER@]HOST[:PORT]", help="If not an SSH alias.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Trust the key that the host shows.")] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint", metavar="SHA256:...", help="Trust the key only if it is this one.", show_default=False
        ),
    ] = None,
) -> int:
    """Get to know a host: show the key that it presents, ask, and remember it."""
    from jobrunner.service import hosts as service

    def confirm(offer: HostKeyOffer) -> bool:
        return _confirm_key(out, offer, yes=yes, fingerprint=fingerprint)

    with out.session() as session:
        result = service.add(session, name, address=address, confirm=confirm, fingerprint=fingerprint)
        data = {
            "host": result.host,
            "fingerprint": result.offer.fingerprint if result.offer else None,
            "pinned": result.pinned,
            "known_hosts": result.known_hosts,
            "hosts_file": result.hosts_file,
        }
        return out.result(data, result, lambda: _added_text(out, result))


def _confirm_key(out: Output, offer: HostKeyOffer, *, yes: bool, fingerprint: str | None) -> bool:
    """Whether to trust a key. Asks only where a person can see the question."""
    if fingerprint is not None:
        wanted = fingerprint.removeprefix("SHA256:").rstrip("=")
        if wanted == offer.fingerprint.removeprefix("SHA256:").rstrip("="):
            return True
        raise HostKeyError(
            f"{offer.host} ({offer.address}) shows the {offer.key_type} key {offer.fingerprint}, not {fingerprint}",
            host=offer.host,
            code="hostkey_changed",
            remedy="nothing was trusted. Ask the host's administrator for its fingerprints",
        )
    if yes:
        return True
    shown = f"{offer.host} ({offer.address}) shows the {offer.key_type} key {offer.fingerprint}"
    if out.json or not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise HostKeyError(
            f"{shown}; nobody has confirmed it, and there is no terminal to ask on",
            host=offer.host,
            code="hostkey_unknown",
            remedy=f"if that is the right key: jobrunner hosts add {offer.host} --fingerprint {offer.fingerprint}",
        )
    out.say(shown)
    return bool(typer.confirm("Is that the right key?", default=False, err=True))


def _added_text(out: Output, result: HostAddResult) -> None:
    name = visible(result.host.get("name"))
    if result.pinned and result.offer:
        out.line(f"{name}: key {result.offer.fingerprint} is trusted from now on")
    elif not result.errors:
        out.line(f"{name}: its key was known already")
    if result.known_hosts and result.pinned:
        out.say(f"written to {result.known_hosts}")
    if result.hosts_file:
        out.say(f"added to {result.hosts_file}")
    if "reachable" in result.host:
        out.table(check_table([result.host]))


def cards(out: Output, names: HostNames = None) -> int:
    """Show the cards of hosts: health, load, and who has them."""
    from jobrunner.service import hosts as service

    with out.session() as session:
        result = service.cards(session, names or [])

        def text() -> None:
            if any(host.get("cards") for host in result.hosts):
                out.table(card_table(result.hosts))
            for line in waiting_lines(result.hosts):
                out.line(line)
            told = {error.message for error in result.errors}
            for line in silent_hosts(result.hosts, told):
                out.say(line)

        return out.result({"hosts": result.hosts}, result, text)


def doctor(out: Output, names: HostNames = None) -> int:
    """Check this machine, the hosts and the way there.

    Whatever is wrong comes with what to do about it.
    """
    from jobrunner.service import doctor as service

    with out.session() as session:
        result = service.doctor(session, names or [])

        def text() -> None:
            for line, style in doctor_lines(result.hosts):
                out.styled(line, style)

        return out.result({"hosts": result.hosts}, result, text)


def adopt(out: Output, names: HostNames = None) -> int:
    """Rebuild this machine's ledger from what the hosts know."""
    from jobrunner.service import adopt as service

    with out.session() as session:
        result = service.adopt(session, names or [])

        def text() -> None:
            if result.rows:
                out.table(job_table(result.rows, output.now()))
            if result.hosts_answered:
                out.say(f"{plural(len(result.rows), 'job')}, {len(result.added)} of them new here")
            if result.schedules:
                out.say(f"{plural(len(result.schedules), 'schedule')} came back: jobrunner schedule ls")

        rows = [row.as_json() for row in result.rows]
        data = {"jobs": rows, "added": result.added, "schedules": result.schedules}
        return out.result(data, result, text)


def gc(
    out: Output,
    names: HostNames = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
) -> int:
    """Clean hosts of what no job needs any more."""
    from jobrunner.service import gc as service

    with out.session() as session:
        result = service.gc(session, names or [], dry_run)
        return out.result({"hosts": result.hosts}, result, lambda: _removed_text(out, result, dry_run))


def _removed_text(out: Output, result: GcResult, dry_run: bool) -> None:
    if any(host.get("removed") for host in result.hosts):
        out.table(removed_table(result.hosts))
    for host in result.hosts:
        verb = "would be freed" if dry_run else "freed"
        out.say(f"{host.get('name')}: {size(host.get('bytes') or 0)} {verb}")


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Hosts: list, check, add, drain, undrain, disconnect.\n\n\b\nExample:\n  jobrunner hosts add npu-a",
    )
    command(group, "ls", group="hosts", example="jobrunner hosts ls")(ls)
    command(group, "check", group="hosts", example="jobrunner hosts check npu-a mlu-b")(check)
    command(group, "add", group="hosts", example="jobrunner hosts add npu-a --address ml@10.0.0.5:2222")(add)
    command(group, "drain", group="hosts", example="jobrunner hosts drain npu-a")(drain)
    command(group, "undrain", group="hosts", example="jobrunner hosts undrain npu-a")(undrain)
    command(group, "disconnect", group="hosts", example="jobrunner hosts disconnect npu-a")(disconnect)
    app.add_typer(group, name="hosts")
    command(app, "cards", example="jobrunner cards npu-a")(cards)
    command(app, "doctor", example="jobrunner doctor npu-a")(doctor)
    command(app, "adopt", example="jobrunner adopt npu-a")(adopt)
    command(app, "gc", example="jobrunner gc npu-a --dry-run")(gc)
