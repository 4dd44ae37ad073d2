"""What a job needs on its way to another host: its request as that host gets it, its secrets, its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError
from jobrunner.core.values import dataclass
from jobrunner.service import staging
from jobrunner.service.clock import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobrunner.ledger.moves import Move
    from jobrunner.service.session import Session
    from jobrunner.upload import Tree


@dataclass(frozen=True)
class Code:
    """Where the code comes from: nothing is needed, a tree of this machine, or a job that the target has (`source`)."""

    tree: Tree | None = None
    source: str | None = None


class Courier:
    """Packs and delivers the jobs of moves. What cannot be had is a warning of the session, said once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._trees: dict[str, Tree | None] = {}
        self._sources: dict[str, dict[str, str]] = {}

    def pack(self, move: Move) -> staging.Parcel | None:
        """The job as the target gets it; None where its secrets or its code are not to be had."""
        from jobrunner.core.spec import spec_from_json
        from jobrunner.service.specs import take_secrets

        session, old = self._session, self._session.ledger.detail(move.id).request
        try:
            spec = spec_from_json(old["spec"])
            secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
            if self.code(move) is None:
                return None
            sweep = {**old["sweep"], "parallel": move.share} if old.get("sweep") else None
            request = staging.request_for(
                session, spec, move.target, job_id=move.id, at=old["submitted_at"], code=old.get("code"),
                client=old.get("client") or {}, sweep=sweep, schedule=old.get("schedule"), plain=old["spec"],
                retry_of=old.get("retry_of"),
            )  # fmt: skip
        except (JobrunnerError, KeyError) as error:
            text = error.message if isinstance(error, JobrunnerError) else f"its request has no {error}"
            session.warn(f"{move.id} cannot go to {move.target} now: {text}")
            return None
        return staging.Parcel({**request, "name": old.get("name"), "moves": move.moves}, secrets)

    def code(self, move: Move) -> Code | None:
        """Where the job's code is to come from; None if it is not to be had."""
        if move.home:
            return Code(source=move.id)
        detail = self._session.ledger.detail(move.id)
        if not detail.request.get("code"):
            return Code()
        sweep = detail.row.sweep or ""
        if sweep not in self._sources:
            self._sources[sweep] = self._known(sweep)
        source = self._sources[sweep].get(move.target)
        if source is not None:
            return Code(source=source)
        tree = self._tree(sweep, detail.code_digest)
        return None if tree is None else Code(tree)

    def _known(self, sweep: str) -> dict[str, str]:
        """A job of the sweep that each host has, and so its code."""
        rows = self._session.ledger.list(sweep=sweep) if sweep else []
        return {
            row.host: row.id
            for row in rows
            if row.host is not None and row.last_seen is not None and row.state.value != "STAGING"
            if row.reason != "interrupted"
        }

    def _tree(self, sweep: str, digest: str | None) -> Tree | None:
        """The sweep's folder on this machine, if it still holds just the code that was sent."""
        if sweep not in self._trees:
            self._trees[sweep] = None if digest is None else self._read(sweep, digest)
        return self._trees[sweep]

    def _read(self, sweep: str, digest: str) -> Tree | None:
        from jobrunner.core.spec import spec_from_json
        from jobrunner.service.sweeps.sending import code_for

        row = self._session.ledger.sweeps.get(sweep)
        tree = code_for(self._session, row, spec_from_json(dict(row.spec))).tree
        return tree if tree is not None and staging.code_digest(tree) == digest else None

    def deliver(self, alias: str, moves: Sequence[Move], parcels: Sequence[staging.Parcel]) -> JobrunnerError | None:
        """Bring jobs to their target, one exchange for each source of code; the error that ended it, if any."""
        groups: dict[Any, list[staging.Parcel]] = {}
        for move, parcel in zip(moves, parcels, strict=True):
            code = self.code(move) or Code()
            groups.setdefault((code.source, code.tree), []).append(parcel)
        try:
            for (source, tree), some in groups.items():
                self._exchange(alias, some, source, tree)
        except JobrunnerError as error:
            return error
        return None

    def _exchange(self, alias: str, parcels: Sequence[staging.Parcel], source: str | None, tree: Tree | None) -> None:
        jobs = [{"request": item.request, "secrets": item.secrets} for item in parcels]
        if source is None:
            staging.stage(self._session, alias, jobs, tree)
            return
        link = self._session.link(alias)
        answer = link.request("clone", id=source, jobs=jobs)
        self._session.ledger.apply_views(alias, link.host_facts["instance"], answer["jobs"], now())
