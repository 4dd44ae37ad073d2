"""The environment and the words of an attempt's command, layer by layer (CONTRACT §2)."""

import os

from . import env, files, jobs, launching, procs, runtime
from .files import to_bytes, to_text

REFUSED = 125


class Build:
    """What an attempt's command is made from. `say(text)` writes a line of ours into the job's log."""

    def __init__(self, layout, plan, request, checkpoint, say):
        self.layout, self.plan, self.say = layout, plan, say
        self.request = request
        self.checkpoint = checkpoint
        self.run = jobs.run_of(request)
        self.options = self.run.get("runtime") or {}
        self.device = self.run.get("device") or "cpu"
        self.attempt = layout.attempt(plan.job_id, plan.attempt)
        self.job = layout.job(plan.job_id)
        self.work = os.path.join(self.attempt, b"work")
        self.notes = []
        recorded = env.as_bytes(files.read_json(os.path.join(self.job, b"environ.json")))
        self._session = env.session_part(recorded)
        # The secrets, from the one file where they are.
        self.secrets = env.as_bytes(files.read_json(os.path.join(self.job, b"secrets.json")))

    def session(self):
        """What the submitting session had."""
        return dict(self._session)

    def given(self):
        """What the host's entry, the spec and the secrets set."""
        table = env.as_bytes(self.run.get("host_env"))
        table.update(env.as_bytes(self.run.get("env")))
        table.update(self.secrets)
        return table

    def marks(self, container=False):
        """What nobody may change."""
        return env.marks(
            {
                "id": self.plan.job_id,
                "name": self.request.get("name"),
                "attempt": self.plan.attempt,
                "device": self.device,
                "cards": self.plan.cards,
                "out": to_text(os.path.join(self.job, b"out")),
                "resume": self.checkpoint,
                "container": container,
                "sweep": self.request.get("sweep"),
            }
        )

    def with_defaults(self, table):
        """The environment with what is set unless the spec sets it. CANN's own logs go into the attempt's folder."""
        logs = os.path.join(self.attempt, b"ascend")
        table = env.defaults(table, self.device, self.plan.master_port, self.plan.hccl_port, logs)
        if table.get(b"ASCEND_PROCESS_LOG_PATH") == logs:
            files.make_dir(logs)
        return table

    def finished(self, table, marks):
        """The last layer."""
        table.pop(b"JOBRUNNER_RESUME_FROM", None)
        table.update(marks)
        table[b"PWD"] = self.work
        return table

    def plain(self, others):
        """`(argv, environment)` of a command that runs on the host itself."""
        table = self.session()
        table.update(self.given())
        home = table.setdefault(b"HOME", os.path.expanduser(b"~"))
        table.setdefault(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        marks = self.marks()
        table = self.finished(self.with_defaults(table), marks)
        activation = env.Activation(self.run, self.device, home, self.work)
        table = activation.apply(table)
        for problem in activation.problems:
            self.tell("warning", problem)
        if self.options.get("migrate"):
            from . import migrate

            table = migrate.shimmed(table, self.device, self.attempt)
        table = self.finished(table, marks)
        argv = runtime.command_argv(self.run, self.work, to_text(home), self.checkpoint, others)
        argv = self.launch(argv, table, sorted(self.plan.cards))
        self.record({"sourced": activation.sourced}, procs.to_argv(argv), table)
        return procs.to_argv(argv), table

    def launch(self, argv, table, cards):
        """The words that a launcher gets; `table` (bytes) is changed where a variable has to be. SetupFailed."""
        words = {to_text(name): to_text(value) for name, value in table.items()}
        variable = next(iter(runtime.visible_devices(self.device, [0])), None) if self.device != "cpu" else None
        port = words.get("MASTER_PORT", "")
        facts = launching.Facts(to_text(self.work), words)
        advice = launching.advise(argv, cards, variable, int(port) if port.isdigit() else None, facts)
        if advice.refusal:
            raise env.SetupFailed(REFUSED, advice.refusal)
        for text in advice.notes:
            self.tell("launch", text)
        for name, value in advice.environment.items():
            table[to_bytes(name)] = to_bytes(value)
        return advice.argv

    def tell(self, kind, text):
        """Say something about this start in the log and in the job's timeline."""
        self.notes.append(text)
        self.say(text)
        jobs.journal(self.layout, self.plan.job_id, kind, attempt=self.plan.attempt, text=text)

    def record(self, facts, argv, table, engine=None):
        """Write down what this attempt runs with."""
        from . import runtime_record

        python = self.python(argv, table) if engine is None else None
        facts = dict(facts, device=self.device, cards=sorted(self.plan.cards), notes=self.notes)
        for name, key in ((b"CONDA_PREFIX", "conda"), (b"VIRTUAL_ENV", "venv")):
            facts[key] = to_text(table[name]) if name in table and engine is None else None
        facts.update(self.versions(table))
        runtime_record.begin(self.layout, self.plan.job_id, self.plan.attempt, facts, python, table, engine)

    def python(self, argv, table):
        """The path of the Python that the command runs by, or None."""
        from . import runtime_record

        fallback = runtime.python_word(self.options, to_text(table.get(b"HOME", b"/")))
        return runtime_record.python_of(argv, table, to_bytes(fallback))

    def versions(self, table):
        """The vendor's versions, as its own files tell them."""
        if self.device == "cpu":
            return {}
        from . import probe_cards

        return probe_cards.versions(self.device, table.get(b"HOME", b"/"))
