"""A job in a container: what `docker run` gets, and the environment of its client."""

import os
import pwd

from . import containers, containers_plan, containers_prepare, env, files, procs, runtime
from .files import to_bytes, to_text


def prepare(build, docker, others):
    """`(argv, environment)` of the client that runs a job's container. Raises SetupFailed."""
    client_env = build.session()
    client_env.update(env.as_bytes(build.run.get("host_env")))
    client_env.setdefault(b"PATH", b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    home = client_env.setdefault(b"HOME", os.path.expanduser(b"~"))
    program = containers_prepare.client(client_env)
    engine = containers.engine_of(program, client_env)
    options = [str(option) for option in docker.get("options") or []]
    image = containers_prepare.image(program, docker["image"], client_env, options, build.say)
    numbers = containers_prepare.physical(build.device, build.plan.cards, lambda text: build.tell("warning", text))
    nodes, groups = containers_prepare.nodes(build.device, build.plan.cards, numbers)
    why = containers_plan.refusal(options, containers_plan.card_nodes(build.device, build.plan.cards, numbers))
    if why:
        raise env.SetupFailed(containers_prepare.CODE, why)
    values, folders = _values(build, docker, client_env)
    argv = runtime.command_argv(build.run, build.work, to_text(home), build.checkpoint, others)
    cards = sorted(build.plan.cards)
    if not containers_plan.is_privileged(docker):
        cards = list(range(len(cards)))
    argv = build.launch(argv, values, cards)
    secret = {name: values.pop(name) for name in build.secrets if name in values}
    by_name, lines = containers_prepare.split_variables(values)
    _, env_file = containers_prepare.as_descriptor(lines)
    facts = _facts(build, nodes, groups, numbers, folders)
    facts["secrets"] = bool(secret)
    facts.update(client=program, names=[to_text(name) for name in by_name], env_file=env_file)
    mounts = [runtime.expand_home(str(volume), to_text(home)) for volume in docker.get("mounts") or []]
    words = containers_plan.docker_argv(dict(docker, mounts=mounts), argv, facts)
    visible = not containers_plan.has(options, "--user", "-u", "--userns")
    containers.record(build.layout, build.plan.job_id, build.plan.attempt, engine, docker["image"], visible)
    told = {"image": docker["image"], "id": image["id"], "digests": image["digests"]}
    build.record({"sourced": [], "docker": told}, procs.to_argv(argv), client_env, engine)
    client_env.update(by_name)
    if secret:
        containers_prepare.as_input(secret)
    # The job's mark is on the client, too: it is a process of the job.
    client_env[b"JOBRUNNER_JOB_ID"] = to_bytes(build.plan.job_id)
    return procs.to_argv(words), client_env


def _values(build, docker, client_env):
    """`(variables for the container, folders to share beside work and out)`."""
    privileged = containers_plan.is_privileged(docker)
    if privileged and build.plan.cards:
        build.tell("warning", "a privileged container sees all cards of the host: the variable names the job's own")
    values = build.with_defaults(build.given())
    marks = build.marks(container=not privileged)
    values.pop(b"JOBRUNNER_RESUME_FROM", None)
    values.update(marks)
    report = os.path.join(build.attempt, b"container")
    files.make_dir(os.path.join(report, b"home"))
    folders = [report]
    logs = os.path.join(build.attempt, b"ascend")
    if values.get(b"ASCEND_PROCESS_LOG_PATH") == logs:
        folders.append(logs)
    if os.getuid():
        # The user is not known in the image: a home to write to, and a name for those who ask.
        values.setdefault(b"HOME", os.path.join(report, b"home"))
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = "user"
        values.setdefault(b"USER", to_bytes(name))
        values.setdefault(b"LOGNAME", to_bytes(name))
    return values, folders


def _facts(build, nodes, groups, numbers, folders):
    facts = {
        "job": build.plan.job_id,
        "attempt": build.plan.attempt,
        "device": build.device,
        "cards": build.plan.cards,
        "physical": numbers,
        "nodes": nodes,
        "groups": groups,
        "work": to_text(build.work),
        "out": to_text(os.path.join(build.job, b"out")),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "report": to_text(os.path.join(build.attempt, b"container")),
        "host_setup": list(build.run.get("host_setup") or []),
        "setup": list(build.options.get("setup") or []),
        "vendor": build.options.get("vendor") != "off" and bool(build.plan.cards),
        "shm_bytes": containers_prepare.shm_bytes(),
        "init": containers_prepare.has_init(),
    }
    if build.options.get("migrate"):
        from . import migrate

        shim = migrate.make(build.device, build.attempt)
        if shim is not None:
            facts["shim"] = to_text(shim)
            folders = [*folders, shim]
    facts["folders"] = [to_text(folder) for folder in folders]
    return facts
