"""Clean up what nobody needs: work folders of old jobs, contents that no job names, old agents, left-overs.

Checkpoints and outputs stay unless the request says `checkpoints`. Another machine's jobs are never touched; what they
name stays.
"""

import os
import re
import stat
import time

from . import blobs, checkpoints, clock, inside, jobs, manifest, packs, parts, queue, remove, trials
from .files import AgentError, append_line, read_file, read_json, to_bytes, to_text
from .layout import JOB_ID
from .working import Working

DAY = 86400.0
KEEP_DAYS = 30
AGENT_DAYS = 7  # an agent that was used within a week stays: something of it may still run
_AGENT = re.compile(rb"agent-([0-9a-f]+)(\.pyz)?\Z")
_RUNNING = re.compile(rb"/agent-([0-9a-f]+)(?:\.pyz)?\0")
_ASIDE = re.compile(rb"(\.tmp-|\.work-).*|.*\.tmp(\.pyz)?\Z")


class Cleaner:
    """Collects what goes, and removes it unless `dry_run`."""

    def __init__(self, layout, own_agent, dry_run, keep_days, with_checkpoints, now, working):
        self.layout = layout
        self.working = working
        self.own_agent = own_agent
        self.dry_run = dry_run
        self.keep_s = keep_days * DAY
        self.with_checkpoints = with_checkpoints
        self.now = now
        self.removed = []

    def drop(self, path, why, how=remove.tree):
        """Note, and unless it is a trial remove, one file or tree."""
        size = remove.size(path, self.working)
        if self.dry_run or how(path, self.working):
            self.removed.append({"path": to_text(path), "bytes": size, "why": why})


def run(session, request):
    """Operation `gc`."""
    days = request.get("keep_days")
    days = KEEP_DAYS if days is None else days
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 <= days < 1e6:
        raise AgentError("bad_request", "keep_days has to be a number of days, not {!r}".format(days))
    dry_run = request.get("dry_run") is not False
    cleaner = Cleaner(
        session.layout, session.agent, dry_run, days, bool(request.get("checkpoints")), time.time(), Working(session)
    )
    old = _old_jobs(cleaner)
    sources = _sources(session.layout)
    for job_id in old:
        _clean_job(cleaner, job_id, cleaner.with_checkpoints and job_id not in sources)
    _clean_blobs(cleaner, frozenset(old))
    _clean_agents(cleaner)
    _clean_leftovers(cleaner)
    _clean_sweeps(cleaner)
    return {"removed": cleaner.removed, "bytes": sum(entry["bytes"] for entry in cleaner.removed), "dry_run": dry_run}


def _clean_sweeps(cleaner):
    """What was counted of sweeps of which nothing waits here any more."""
    entries = queue.Cache(cleaner.layout).entries()
    waiting = {trials.path(cleaner.layout, trials.id_of(entry)) for entry in entries if trials.id_of(entry)}
    folder = trials.folder(cleaner.layout)
    try:
        found = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return
    for path in found:
        try:
            old = cleaner.now - os.lstat(path).st_mtime >= cleaner.keep_s
        except OSError:
            continue
        if old and path not in waiting:
            cleaner.drop(path, "failures of a sweep that is over")


def _old_jobs(cleaner):
    """This machine's jobs that ended longer ago than `keep_days` and of which nothing is being pulled."""
    found = []
    for job_id in jobs.all_ids(cleaner.layout):
        cleaner.working()
        verdict = jobs.final(cleaner.layout, job_id)
        try:
            ended = clock.seconds(verdict["at"])
        except (TypeError, KeyError, ValueError):
            continue
        busy = jobs.locked(cleaner.layout, job_id) or checkpoints.pulls(cleaner.layout, job_id)
        if cleaner.now - ended >= cleaner.keep_s and not busy:
            found.append(job_id)
    return found


def _sources(layout):
    """Jobs from whose checkpoints a job that is not final may still go on."""
    found = set()
    todo = [job_id for job_id in jobs.all_ids(layout) if not jobs.is_final(layout, job_id)]
    while todo:
        source = read_json(os.path.join(layout.job(todo.pop()), b"resume.json"), {}).get("job")
        if isinstance(source, str) and JOB_ID.match(source) and source not in found:
            found.add(source)
            todo.append(source)
    return found


def _clean_job(cleaner, job_id, with_checkpoints):
    layout = cleaner.layout
    request = jobs.request(layout, job_id) or {}
    if not cleaner.dry_run:
        checkpoints.note(layout, job_id, request, final=True)
    noted = [to_bytes(record["path"]) for record in checkpoints.present(layout, job_id)]
    patterns = [pattern for pattern in jobs.run_of(request).get("outputs") or [] if isinstance(pattern, str)]
    for top, number in checkpoints.places(layout, job_id):
        if number is None or not os.path.isdir(top):
            continue
        kept = set() if with_checkpoints else _kept(top, noted, patterns)
        if not kept:
            cleaner.drop(top, "work folder of a job that ended over {:g} days ago".format(cleaner.keep_s / DAY))
        else:
            _drop_all_but(cleaner, top, kept)
    if with_checkpoints:
        out = os.path.join(layout.job(job_id), b"out")
        for path in noted:
            if path.startswith(out + b"/") and os.path.lexists(path):
                cleaner.drop(path, "checkpoint of an old job")
        if not cleaner.dry_run:
            _note_removed(layout, job_id)


def _kept(top, noted, patterns):
    """The paths under `top` that stay: checkpoints and outputs, with all in them."""
    kept = {os.path.relpath(path, top) for path in noted if path.startswith(top + b"/") and os.path.lexists(path)}
    try:
        kept.update(inside.find(top, patterns))
    except AgentError:
        pass  # a spec from before patterns were checked
    return kept


def _drop_all_but(cleaner, top, kept):
    above = set()
    for path in kept:
        while path:
            path = path.rpartition(b"/")[0]
            above.add(path)
    todo = [b""]
    while todo:
        folder = todo.pop()
        for entry in list(os.scandir(os.path.join(top, folder) if folder else top)):
            path = folder + b"/" + entry.name if folder else entry.name
            if path in kept:
                continue
            if path in above and entry.is_dir(follow_symlinks=False):
                todo.append(path)
            else:
                cleaner.drop(os.path.join(top, path), "files of an old job other than its checkpoints and outputs")


def _note_removed(layout, job_id):
    for record in checkpoints.present(layout, job_id):
        if not os.path.lexists(to_bytes(record["path"])):
            line = dict(record, removed=clock.stamp())
            append_line(os.path.join(layout.job(job_id), b"checkpoints.jsonl"), line)


def _machines(layout):
    """`(instance, folder of its jobs)` of every machine that shares this root."""
    try:
        names = os.listdir(layout.hosts)
    except OSError:
        return []
    return [
        (to_text(name), os.path.join(layout.hosts, name, b"jobs"))
        for name in sorted(names)
        if not name.startswith(b".")
    ]


def _each_job(layout):
    """`(instance, job id, folder)` of every job of every machine, those in the making included."""
    for instance, folder in _machines(layout):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            yield instance, to_text(name), os.path.join(folder, name)


def _clean_blobs(cleaner, old):
    """Mark what manifests name, sweep the rest once it is a day old. A manifest that cannot be read stops the sweep."""
    layout = cleaner.layout
    named = set()
    for instance, job_id, folder in _each_job(layout):
        if instance == layout.instance and job_id in old:
            continue
        cleaner.working()
        try:
            entries = manifest.load(os.path.join(folder, b"manifest.json")) or []
        except AgentError:
            return
        named.update(entry[4].encode("ascii") for entry in entries if entry[0] == "f")
    for path, name in blobs.paths(layout):
        cleaner.working()
        if name not in named and not name.startswith(b".") and _older(path, cleaner.now - DAY):
            cleaner.drop(path, "content that no job here needs any more")
    for path in packs.paths(layout):
        cleaner.working()
        needed = any(digest.encode("ascii") in named for digest, _, _ in packs.records(path))
        if not needed and _older(path, cleaner.now - DAY):
            cleaner.drop(path, "contents that no job here needs any more")
            if not cleaner.dry_run:
                packs.remove(path + b".idx")


def _older(path, limit):
    """Asked right before removal: a stage that needs a content touches it."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_mtime < limit


def _clean_agents(cleaner):
    layout = cleaner.layout
    needed = _running_agents() | {to_bytes(cleaner.own_agent or "")}
    for _, _, folder in _each_job(layout):
        if not os.path.exists(os.path.join(folder, b"final.json")):
            agent = read_json(os.path.join(folder, b"request.json"), {}).get("agent")
            if isinstance(agent, str):
                needed.add(to_bytes(agent))
    try:
        names = os.listdir(layout.agents)
    except OSError:
        return
    versions = {}
    for name in sorted(names):
        match = _AGENT.match(name)
        if match and match.group(1) not in needed:
            versions.setdefault(match.group(1), []).append(os.path.join(layout.agents, name))
    for paths in versions.values():
        # A version is used from its unpacked folder and marked as used on its zipapp.
        if max(_age_mark(path) for path in paths) < cleaner.now - AGENT_DAYS * DAY:
            for path in paths:
                cleaner.drop(path, "a version of the agent that no job needs and nobody used for a week")


def _age_mark(path):
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _running_agents():
    """Hashes of the agents that processes here run from."""
    found = set()
    for name in os.listdir(b"/proc"):
        if name.isdigit():
            try:
                found.update(_RUNNING.findall(read_file(b"/proc/" + name + b"/cmdline", 1 << 20) or b""))
            except OSError:
                continue
    return found


def _clean_leftovers(cleaner):
    layout = cleaner.layout
    folders = [layout.root, layout.agents, layout.hosts, layout.home, layout.jobs, layout.queue]
    folders += [layout.packs, *sorted({os.path.dirname(path) for path, _ in blobs.paths(layout)})]
    for job_id in jobs.all_ids(layout):  # its folder, and those of its attempts
        folders += [os.path.dirname(top) for top, _ in checkpoints.places(layout, job_id)]
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                if _ASIDE.match(name) and os.lstat(path).st_mtime < cleaner.now - DAY:
                    how = parts.forget if name.startswith(blobs.PART) else remove.tree
                    cleaner.drop(path, "left over from something that was cut off", how)
            except OSError:
                continue
