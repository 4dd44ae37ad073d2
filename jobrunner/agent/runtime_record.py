"""What an attempt ran with, in `runtime.json`: driver, toolkit, python, packages, what was sourced, the image.

Nothing is imported to find it out: packages are known by the names of their metadata folders. A Python that was looked
at before is known from a cache; another one is asked by a helper beside the job, which never waits for it.
"""

import json
import os

from . import clock, files, jobs

LIMIT_S = 20.0
SHOWN = ("torch", "torch_npu", "torch_mlu", "torch_musa", "mindspore", "deepspeed", "accelerate", "transformers")
MARK = "@jobrunner-runtime@"

# Runs in the job's own Python, of whichever version from 2.7 on.
_SNIPPET = """
import json, os, platform, sys
found, places = {}, []
for folder in sys.path:
    if not folder or not os.path.isdir(folder):
        continue
    places.append(folder)
    for name in sorted(os.listdir(folder)):
        base, _, kind = name.rpartition('.')
        if kind in ('dist-info', 'egg-info') and '-' in base:
            parts = base.split('-')
            found.setdefault(parts[0].lower().replace('_', '-').replace('.', '-'), parts[1])
print(sys.argv[1] + json.dumps({'executable': sys.executable, 'version': platform.python_version(),
    'machine': platform.machine(), 'packages': found, 'places': places}))
"""


def python_of(argv, environment, fallback=b"python3"):
    """The path of the Python that a command will run by, as far as its words tell; None where there is none.

    The first word if it is a Python, else the Python of the program's `#!` line, else `fallback` on the PATH.
    """
    program = which(argv[0], environment) if argv else None
    if program is not None:
        if os.path.basename(program).startswith(b"python"):
            return program
        words = _first_line(program)
        if words and os.path.basename(words[0]).startswith(b"python"):
            return words[0]
        if len(words) > 1 and os.path.basename(words[0]) == b"env" and words[1].startswith(b"python"):
            return which(words[1], environment)
    return which(fallback, environment) or which(b"python", environment)


def which(name, environment):
    """The path of a program on an environment's PATH, or None."""
    folders = [b""] if b"/" in name else environment.get(b"PATH", b"").split(b":")
    for folder in folders:
        path = os.path.join(folder, name) if folder else name
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _first_line(path):
    try:
        with open(path, "rb") as file:
            line = file.read(512).partition(b"\n")[0]
    except OSError:
        return []
    return line[2:].split() if line.startswith(b"#!") else []


def versions(packages):
    """The versions that a person asks for first. Pure."""
    found = {name: packages[name.replace("_", "-")] for name in SHOWN if name.replace("_", "-") in packages}
    return found


def begin(layout, job_id, attempt, facts, python=None, environment=None, engine=None):
    """Write `runtime.json` with what is known now, and see that the rest is added beside the job.

    `python` is the path of the job's Python and `environment` its environment; `engine`: the Python is in a container
    that this engine runs. Never fails: a record that cannot be written is no reason to keep a job from running.
    """
    try:
        record = dict(facts, v=1, at=clock.stamp(), python=None, packages={})
        known = remembered(layout, python, environment) if python else None
        if known:
            record.update(known)
        write(layout, job_id, attempt, record)
        if engine or (python and not known):
            _beside(layout, job_id, attempt, record, python, environment, engine)
        else:
            tell(layout, job_id, attempt, record)
    except (OSError, ValueError):
        pass


def write(layout, job_id, attempt, record):
    """Publish the record."""
    files.write_json(os.path.join(layout.attempt(job_id, attempt), b"runtime.json"), record, sync=False)


def tell(layout, job_id, attempt, record):
    """Put the versions into the job's timeline, if there are any but Python's own."""
    said = versions(record.get("packages") or {})
    for name, value in (
        ("driver", record.get("driver")),
        ("toolkit", record.get("toolkit")),
        ("image", (record.get("docker") or {}).get("image")),
    ):
        if value:
            said[name] = value
    if said and not jobs.is_final(layout, job_id):
        python = (record.get("python") or {}).get("version")
        jobs.journal(layout, job_id, "runtime", attempt=attempt, python=python, **said)


def _beside(layout, job_id, attempt, record, python, environment, engine):
    """In a process that is nobody's child and holds nothing of the job: ask the Python, and write the record anew."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        from . import kernel, procs

        kernel.name_process(b"jr-runtime")
        procs.close_all_but([])
        os.chdir("/")
        os.nice(10)
        if not engine:
            secrets = {files.to_bytes(name) for name in jobs.run_of(jobs.request(layout, job_id)).get("secrets") or ()}
            environment = {name: value for name, value in environment.items() if name not in secrets}
        found = _in_container(layout, job_id, engine) if engine else ask(python, environment)
        if found:
            if not engine:
                _remember(layout, python, environment, found)
            record.update(_facts(found))
            write(layout, job_id, attempt, record)
        tell(layout, job_id, attempt, record)
        if engine:
            from . import containers_prepare

            containers_prepare.clear(layout, engine)
    finally:
        os._exit(0)


def _facts(found):
    python = {key: found.get(key) for key in ("executable", "version", "machine")}
    return {"python": python, "packages": found.get("packages") or {}}


def ask(python, environment, limit_s=LIMIT_S):
    """What a Python tells about itself, or None."""
    from . import containers, procs

    table = {name: value for name, value in environment.items() if not name.startswith(b"JOBRUNNER_JOB_")}
    table[procs.OWN_MARK] = b"1"  # it belongs to no job, and no job waits for it
    return _answer(containers.run([python, b"-c", _SNIPPET.encode(), MARK.encode()], table, limit_s)[1])


def _answer(output):
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            try:
                value = json.loads(line[len(MARK) :])
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


def _in_container(layout, job_id, engine):
    """The same of the Python in the job's container, once it is up; None if it ended before."""
    import time

    from . import containers

    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends and not jobs.is_final(layout, job_id):
        for _, container in containers.of_job(layout, job_id):
            hidden = ["--env", "JOBRUNNER_JOB_ID=", "--env", "JOBRUNNER_AGENT=1"]
            for name in ("python3", "python"):
                words = ["exec", *hidden, container, name, "-c", _SNIPPET, MARK]
                found = _answer(containers.ask(engine, words, LIMIT_S) or b"")
                if found:
                    return found
            return None
        time.sleep(0.25)
    return None


def _key(python, environment):
    """What a Python's answer depends on: where it really is, and what points it elsewhere."""
    real = os.path.realpath(python)
    seen = os.stat(real)
    parts = [python, real, str(seen.st_mtime_ns).encode(), str(seen.st_size).encode()]
    for name in (b"PYTHONPATH", b"PYTHONHOME", b"PYTHONUSERBASE", b"PYTHONNOUSERSITE", b"HOME"):
        parts.append(environment.get(name, b"-"))
    return files.digest(b"\0".join(parts))[:24]


def _path(layout, key):
    return os.path.join(layout.home, b"pythons", key.encode() + b".json")


def remembered(layout, python, environment):
    """The facts about a Python that was asked before, if none of its folders has changed since; else None."""
    kept = jobs.read_dict(_path(layout, _key(python, environment)))
    if not kept:
        return None
    for place, when in kept.get("places") or []:
        if _changed(place) != when:
            return None
    return _facts(kept)


def _changed(place):
    try:
        return os.stat(files.to_bytes(place)).st_mtime_ns
    except OSError:
        return None


def _remember(layout, python, environment, found):
    path = _path(layout, _key(python, environment))
    files.make_dir(os.path.dirname(path))
    places = [[place, _changed(place)] for place in found.get("places") or []]
    files.write_json(path, dict(found, places=places), sync=False)
