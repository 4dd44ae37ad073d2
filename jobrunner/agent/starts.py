"""Start a job: its lock, its cards' leases (all or none), a look at who is still there, its supervisor."""

import gc
import os

from . import files, first, jobs, kernel, leases, procs, trials
from .layout import card_name

_loaded = False
CHANGING = ("attempt", "hold", "not_before", "priority", "queued_at")  # what of an entry is rewritten while it waits


def keepers(layout, device, cards):
    """`{card: job id}` of cards that a living process of one of our jobs keeps although their names are free."""
    wanted = set(cards)
    found = {}
    living = set(procs.carriers())
    if _may_have_containers(layout):
        from . import containers

        living |= containers.living_jobs(layout)
    for job_id in living:
        for start in _starts_of(layout, job_id):
            if start.get("device") == device:
                for card in wanted & set(start.get("cards") or ()):
                    found[card] = job_id
    return found


def _starts_of(layout, job_id):
    """The start records of a job, of whichever instance of ours: an id found on a process may be of another root."""
    from .layout import JOB_ID

    if not JOB_ID.match(job_id) or not jobs.exists(layout, job_id):
        return []
    return [start for start in (jobs.start(layout, job_id, n) for n in jobs.attempts(layout, job_id)[-1:]) if start]


def expect_containers(layout):
    """Remember that jobs in containers are started here: from now on their engines are asked before a card is given."""
    if not _may_have_containers(layout):
        files.write_file(os.path.join(layout.home, b"containers"), b"[]", sync=False)


def _may_have_containers(layout):
    return os.path.exists(os.path.join(layout.home, b"containers"))


def waits(layout, entry):
    """True if the job waits still, and just as the entry says: nobody cancelled, held or changed it, nor ended its
    sweep meanwhile."""
    job_id = entry["id"]
    if jobs.is_final(layout, job_id) or jobs.cancel(layout, job_id) is not None:
        return False
    now = jobs.queue_entry(layout, job_id)
    if now is None or any(entry.get(key) != now.get(key) for key in CHANGING):
        return False
    return trials.over(layout, entry) is None


def take(layout, entry, cards, clear=False):
    """`(lock, leases)` of a job and its cards, or None.

    None: somebody else has one of them, or still keeps a card, or the job waits no longer as the entry says. `clear`:
    it is known that no process of a job of ours is left on the cards (`handover`); containers are asked all the same.
    """
    lock = leases.bind(layout.job_lock(entry["id"]))
    if lock is None:
        return None
    if not waits(layout, entry):
        leases.release([lock])
        return None
    held = leases.bind_all([card_name(entry["device"], card) for card in sorted(cards)]) if cards else []
    known = clear and not _may_have_containers(layout)
    if held is not None and cards and not known and keepers(layout, entry["device"], cards):
        leases.release(held)
        held = None
    if held is None:
        leases.release([lock])
        return None
    return lock, held


def start(layout, entry, cards, lock, held, drop, inlet=None, spare=None):
    """Start the supervisor of a job whose lock and leases we hold; its pid. OSError if there can be none. Our copies of
    them are closed in any case.

    `drop` are descriptors that the supervisor must not keep, `inlet` is where it tells of its end. Where the job asks
    for this very agent, `spare` becomes it, else a fork without exec; else the agent that the job names is run.
    """
    try:
        other, pid = _other_agent(layout, entry), None
        if not other:
            load()
            pid = spare.give([entry, cards], [lock, *held]) if spare is not None else None
        return pid or _fork(layout, entry, cards, lock, held, drop, inlet, other)
    finally:
        leases.release([lock, *held])


def prepare(layout, entry, spare, drop, inlet):
    """Have the processes of the next start ready, once there was one: supervisor and command. `entry` is of the job
    that may be next."""
    if _loaded:
        from . import rehearsal  # noqa: F401 - once for all of them

        spare.make(lambda: _ready(layout, entry, inlet), drop)


def _ready(layout, entry, inlet):
    from . import rehearsal

    one = first.ahead(layout, entry)
    rehearsal.quietly(rehearsal.of_supervisor, layout, entry)

    def become(told, descriptors):
        kernel.die_with_parent(0)
        entry, cards = told
        return _supervise(layout, entry, cards, descriptors[0], descriptors[1:], inlet, one)

    return become


def _fork(layout, entry, cards, lock, held, drop, inlet, other):
    pid = os.fork()
    if not pid:
        status = 70
        try:
            leases.release(drop)
            if other:
                os.setsid()
                _run_other(layout, entry, cards, lock, held, other)
            status = _supervise(layout, entry, cards, lock, held, inlet)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def load():
    """Load, once, what supervisors and commands need: each is forked with it, and they share its memory."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from . import (  # noqa: F401
        checkpoints,
        command,
        command_build,
        launchers,
        notes,
        ports,
        probe_cards,
        runtime_record,
        supervisor,
        worktree,
    )

    launchers.get("nohup")
    files.digest(b"")  # it has a module of its own
    gc.collect()
    getattr(gc, "freeze", int)()  # what is here stays: a fork's collections need not touch, and so copy, it


def _run_other(layout, entry, cards, lock, held, place):
    words = [
        "start",
        layout.root.decode("utf-8", "surrogateescape"),
        layout.instance,
        entry["id"],
        entry.get("attempt") or 1,
        lock,
        ",".join(str(lease) for lease in held),
        ",".join(str(card) for card in cards),
    ]
    for descriptor in [lock, *held]:
        os.set_inheritable(descriptor, True)
    argv = procs.to_argv(procs.agent_argv("supervisor", words, place=place))
    os.execve(argv[0], argv, procs.own_environment())


def _supervise(layout, entry, cards, lock, held, inlet, ahead=None):
    os.setsid()
    attempt = entry.get("attempt") or 1
    from . import supervisor

    return supervisor.Supervisor(layout, entry["id"], attempt, lock, held, cards, entry, inlet, ahead).run()


def _other_agent(layout, entry):
    """Where the agent that a job names lies, if it is another than this one and there."""
    return agent_named(layout, entry.get("agent")) if entry.get("agent") != procs.agent_place()[2] else None


def agent_named(layout, named):
    """Where the agent of that hash lies, unpacked or as a zipapp, as text; None if it is not there."""
    if not named or not str(named).isalnum():
        return None
    folder = os.path.join(layout.agents, "agent-{}".format(named).encode("ascii"))
    for place, proof in (
        (folder, os.path.join(folder, b"jobrunner/agent/supervisor.py")),
        (folder + b".pyz", folder + b".pyz"),
    ):
        if os.path.exists(proof):
            return files.to_text(place)
    return None
