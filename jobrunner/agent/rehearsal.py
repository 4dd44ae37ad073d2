"""What the start of a job reads, read for nothing by the processes that were forked ahead of it, before they wait.

From a fork on memory is shared, and copied page by page where it is touched, which takes longer than most of what a
start does. Nothing is changed, run or kept here: what was read may be another by the time of the start.
"""

from . import command, command_build, env, evidence, files, jobs, runtime_record, supervisor


def quietly(rehearse, layout, entry):
    """Rehearse; what goes wrong is the start's to say."""
    try:
        rehearse(layout, entry)
    except Exception:
        pass


def of_supervisor(layout, entry):
    """What the supervisor of a job that waits does first."""
    supervisor.Supervisor(layout, entry["id"], entry.get("attempt") or 1, None, entry=entry)
    evidence.Mark().close()
    files.promises_room(layout.home)


def of_command(layout, entry):
    """How its command comes by its environment and its words, without what has to be run for that."""
    plan = command.Plan(entry["id"], entry.get("attempt") or 1, [], 1, 1)
    command.gather(layout, plan)
    run = jobs.run_of(jobs.request(layout, entry["id"]))
    plainly = {"device": run.get("device"), "command": {"argv": ["python3"]}, "runtime": {"vendor": "off"}}
    _Build(layout, plan, {"id": entry["id"], "run": plainly}, None, None).plain({})


class _Build(command_build.Build):
    """One that writes nothing."""

    def with_defaults(self, table):
        return env.defaults(table, self.device, self.plan.master_port, self.plan.hccl_port)

    def tell(self, kind, text):
        pass

    def record(self, facts, argv, table, engine=None):
        self.versions(table)
        runtime_record.remembered(self.layout, self.python(argv, table), table)
