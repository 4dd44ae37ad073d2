"""The exchange that brings jobs to a host: manifest, what is missing there, the bytes, the answer."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import (
    AuthError,
    ConnectError,
    HostError,
    HostKeyError,
    JobrunnerError,
    LinkLostError,
    UsageError,
)
from jobrunner.core.values import dataclass
from jobrunner.service.clock import now
from jobrunner.service.reconcile import remember_host
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec
    from jobrunner.core.specparts import Code
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.session import Session as Stream
    from jobrunner.upload import Tree

TRIES = 3
"""A cut exchange is begun anew so often: it goes on under the same ids, so nothing happens twice."""

NOT_REACHED = (ConnectError, HostKeyError, AuthError)
"""Errors after which the host has been told nothing."""

TOGETHER = 200
"""So many jobs go in one exchange at most, so that each is soon answered."""

FEW = 4
"""More jobs than these travel packed: they are much alike."""


@dataclass(frozen=True)
class Sent:
    """What one exchange did: distinct contents and bytes that had to travel."""

    files: int
    bytes: int
    existed: list[str]


@dataclass(frozen=True)
class Parcel:
    """A job to be sent. `resumed`: an earlier submit may have brought it to its host already."""

    request: Mapping[str, Any]
    secrets: Mapping[str, str] = field(repr=False)
    resumed: bool = False

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self.request["id"])


def request_for(
    session: Session,
    spec: JobSpec,
    host: str,
    *,
    job_id: str,
    at: str,
    code: Mapping[str, Any] | None,
    client: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """request.json for one job on one host."""
    from jobrunner.core.request import build_request

    return build_request(
        spec,
        session.hosts.get(host),
        job_id=job_id,
        agent_hash=session.agent_hash,
        submitted_at=at,
        client=client,
        code=code,
        ids={item.job: session.ledger.resolve(item.job) for item in spec.after},
        **more,
    )


def code_digest(tree: Tree | None) -> str | None:
    """One hash for a whole tree; None where no code travels."""
    if tree is None:
        return None
    return tree.digest


def read_code(session: Session, folder: Path, code: Code, *, large: bool = True) -> Tree:
    """The tree of a code folder, hashed. Raises UsageError if it is too much, or cannot be read."""
    from jobrunner.upload import HashCache, check_size, scan

    cache = HashCache.of(session.home / "cache", folder)
    tree = scan(folder, code.include, code.exclude, never=[session.home], cache=cache)
    check_size(tree, large=large)
    tree.digest  # noqa: B018  reads and hashes every file, here rather than while the host waits
    cache.save()
    for text in tree.warnings:
        session.warn(text)
    return tree


def deliver(session: Session, alias: str, parcels: Sequence[Parcel], tree: Tree | None) -> Sent | JobrunnerError:
    """Bring jobs that share a tree to a host, as many exchanges as it takes; the error that ended it is returned.

    After one the ledger keeps those jobs that the host has or may have, and forgets those that it surely does not.
    """
    files, size, existed = 0, 0, list[str]()
    for begin in range(0, len(parcels), TOGETHER):
        some = parcels[begin : begin + TOGETHER]
        jobs = [{"request": item.request, "secrets": item.secrets} for item in some]
        try:
            sent = stage(session, alias, jobs, tree)
        except LinkLostError as error:
            return error  # the rows stay: nobody knows yet whether the host has the jobs
        except (HostError, UsageError) as error:
            # An earlier submit may have brought there what this one could not even ask about.
            left = parcels[begin:]
            ids = [item.id for item in left if not (item.resumed and isinstance(error, NOT_REACHED))]
            there = forget_unless_there(session, alias, ids, error)
            return Sent(files, size, [*existed, *there]) if len(there) == len(left) else error
        files, size, existed = files + sent.files, size + sent.bytes, existed + sent.existed
    return Sent(files, size, existed)


def stage(session: Session, alias: str, jobs: Sequence[Mapping[str, Any]], tree: Tree | None) -> Sent:
    """Bring jobs (`request`, `secrets`) and their tree to a host; the ledger knows them as queued afterwards.

    Begun anew after a cut link. Raises LinkLostError if it stays cut: the host may or may not have the jobs.
    """
    cut: LinkLostError | None = None
    for left in reversed(range(TRIES)):
        try:
            return _once(session, alias, jobs, tree)
        except ConnectError as error:
            if cut is None:
                raise
            raise LinkLostError(
                f"the link to {alias} was lost while sending, and now: {error.message}",
                host=alias,
                remedy="run the same command again when it answers: whatever reached the host is kept",
            ) from error
        except LinkLostError as error:
            cut = error
            session.links.forget(alias)
            if not left or session.links.closed:  # closed: by an interrupt
                raise
            session.progress.note(f"link to {alias} lost while sending ({error.message}); going on")
    raise AssertionError("unreachable")


def forget_unless_there(session: Session, alias: str, ids: Sequence[str], error: BaseException) -> list[str]:
    """After a sending that failed, drop the jobs that the host does not have; returns those that it has after all.

    An agent that was killed, or whose disk filled up, may have had a job before it said no: only another look tells.
    What cannot be looked at stays, for the next command that reaches the host.
    """
    if isinstance(error, UsageError | ConnectError | HostKeyError | AuthError):
        for id_ in ids:
            session.ledger.delete_unsent(id_)
        return []
    try:
        link = session.link(alias)
        answer = link.request("look", jobs=list(ids), events={}, cards=False)
    except JobrunnerError:
        return []
    views = {id_: answer["jobs"][id_] for id_ in ids if answer["jobs"].get(id_)}
    if views:
        session.ledger.apply_views(alias, link.host_facts["instance"], views, now())
    for id_ in ids:
        if id_ not in views:
            session.ledger.delete_unsent(id_)
    return list(views)


def _once(session: Session, alias: str, jobs: Sequence[Mapping[str, Any]], tree: Tree | None) -> Sent:
    link = session.link(alias)
    with session.timings.phase("request"):
        packed = _packed(tree.manifest) if tree is not None else None
        many = {"jobs_z": _packed(list(jobs))} if len(jobs) > FEW else {"jobs": list(jobs)}
    with link.stream("stage", manifest_z=packed, **many) as stream:
        answer, files, size = stream.read_json(), 0, 0
        if "ok" not in answer:
            files, size = _send_blobs(session, link, stream, tree, _needed(alias, tree, answer.get("need")))
            answer = stream.read_json()
        host = stream.host
    _take_over(session, alias, link, host, answer["data"], [job["request"]["id"] for job in jobs])
    return Sent(files, size, list(answer["data"].get("existed", [])))


def _packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode(), 1)).decode("ascii")


def _needed(alias: str, tree: Tree | None, need: list[int] | None) -> list[int]:
    """What the host asks for, each content once; HostError if it asks for what it was never offered."""
    offered = range(len(tree.contents) if tree is not None else 0)
    if need is None or any(index not in offered for index in need) or len(set(need)) != len(need):
        raise HostError(
            f"{alias} asks for contents that are not in the code's list",
            host=alias,
            code="bad_answer",
            remedy="Use the same version of jobrunner everywhere.",
        )
    return need


def _send_blobs(
    session: Session, link: HostLink, stream: Stream, tree: Tree | None, need: list[int]
) -> tuple[int, int]:
    if tree is None or not need:
        return 0, 0
    from jobrunner.service.uplanes import Uploads
    from jobrunner.upload import iter_blobs

    total = sum(tree.contents[index][2] for index in need)
    task = session.progress.start(f"sending to {link.alias}", total)
    size = 0

    def advance(count: int) -> None:
        session.progress.advance(task, count)

    wide = Uploads(link.bulk, tree, lambda: stream.send_json({"tick": True}), advance)
    try:
        for index in need:
            if wide.send(index):
                stream.send_json({"stored": True})
                continue
            for _, pieces in iter_blobs(tree, [index]):
                for piece in pieces:
                    if stream.answered:
                        stream.read_json()  # before its time: it says what went wrong there
                    stream.send_bytes(piece)
                    size += len(piece)
                    advance(len(piece))
            stream.send_end()
    finally:
        session.progress.finish(task)
    return len(need), size + wide.bytes


def _take_over(
    session: Session,
    alias: str,
    link: HostLink,
    host: Mapping[str, Any],
    data: Mapping[str, Any],
    ids: Sequence[str],
) -> None:
    views = {id_: data["jobs"][id_] for id_ in ids if data["jobs"].get(id_)}
    for id_, view in views.items():
        for text in view.get("warnings") or []:
            session.warn(f"{view.get('name') or id_}: {text}")
    missing = [id_ for id_ in ids if id_ not in views]
    if missing:
        raise HostError(f"{alias} answered without saying what became of {', '.join(missing)}", host=alias)
    with session.timings.phase("ledger"):
        session.ledger.apply_views(alias, host["instance"], views, now())
        remember_host(session, alias, {"host": host})
    wishes = [wish for wish in session.ledger.pending_wishes(alias) if wish.job in views]
    if wishes:  # somebody cancelled it while it was being sent
        cancel = [{"id": wish.job, "grace_s": wish.grace_s, "at": wish.at} for wish in wishes]
        answer = link.request("look", jobs=[wish.job for wish in wishes], cancel=cancel)
        session.ledger.apply_views(alias, host["instance"], answer["jobs"], now())
        session.ledger.applied([wish.job for wish in wishes], now())


def remember_ways(session: Session, sent: Iterable[tuple[Path, str]]) -> None:
    """Jobs of these spec files went there: the next submit of them may begin to connect before it has read them."""
    from jobrunner.service import hints

    used = [(path, session.links.target(alias)) for path, alias in sent]
    hints.remember(session.home, session.hosts_file, session.environ, used)


def upload_report(trees: Sequence[Tree], sent: Sequence[Sent]) -> dict[str, Any]:
    """What the sending did, over all trees; of several trees the first one's details. Empty where no code travels."""
    if not trees:
        return {}
    report = trees[0].report()
    report.pop("warnings")
    left_out = [entry for tree in trees for entry in tree.report()["left_out"]]
    return {
        **report,
        "files": sum(tree.files for tree in trees),
        "bytes": sum(tree.size for tree in trees),
        "sent": sum(item.files for item in sent),
        "sent_bytes": sum(item.bytes for item in sent),
        "skipped": len(left_out),
        "left_out": left_out[:50],
    }
