"""Before a job's container is made: the client, the engine, the image, the cards' files. What is missing is said."""

import json
import os

from . import containers, containers_plan, files, kernel, procs
from .env_shell import SetupFailed
from .files import to_text

CODE = 125
ASK_S = 30.0
_SET_PIPE_SIZE = 1031  # fcntl's F_SETPIPE_SZ, which this module has no name for
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# What an engine's client prints: (piece of it, what it means, what to do).
_ERRORS = (
    ("permission denied", "this user may not use the container engine",
     "have the user put into the group docker (`sudo usermod -aG docker $USER`), then log in again"),
    ("Cannot connect", "the container engine does not answer", "start it (`sudo systemctl start docker`)"),
    ("Is the docker daemon running", "the container engine does not answer",
     "start it (`sudo systemctl start docker`)"),
)  # fmt: skip
_NO_CLIENT = (
    "runtime.docker is asked for and there is no docker (nor podman or nerdctl) on the job's PATH. "
    "Install docker on the host, or name another host"
)


def client(environment):
    """The path of the client; SetupFailed where there is none."""
    found = containers.find_client(environment)
    if found is None:
        raise SetupFailed(CODE, _NO_CLIENT)
    return to_text(found)


def explained(what, errors):
    """SetupFailed for an engine that refuses: its own last words, and what to do. Pure."""
    text = errors.decode("utf-8", "replace").strip()
    for piece, meaning, remedy in _ERRORS:
        if piece in text:
            return SetupFailed(CODE, "{}: {}. To mend it, {}".format(what, meaning, remedy))
    return SetupFailed(CODE, "{}: {}".format(what, (text.splitlines() or ["no reason was given"])[-1][:400]))


def image(program, name, environment, options, say):
    """What is known of the image, fetched first if it is not there: `{id, digests, architecture}`. SetupFailed."""
    words = [program, "image", "inspect", name]
    status, out, err = containers.run(words, environment, ASK_S)
    if status is None:
        raise SetupFailed(CODE, "the container engine did not answer within {:.0f} s".format(ASK_S))
    if status and b"o such image" not in err and b"not known" not in err and b"o such object" not in err:
        raise explained("the image {} cannot be looked up".format(name), err)
    if status:
        say("the image {} is not on this host: it is being fetched".format(name))
        _pull(program, name, environment)
        status, out, err = containers.run(words, environment, ASK_S)
        if status:
            raise explained("the image {} cannot be looked up".format(name), err)
    found = _inspected(out)
    fits = _MACHINES.get(os.uname().machine)
    other = fits and found["architecture"] in _MACHINES.values() and found["architecture"] != fits
    if other and not containers_plan.has(options, "--platform"):
        text = "the image {} is for {} and this host is {}: take the image for {}"
        raise SetupFailed(CODE, text.format(name, found["architecture"], os.uname().machine, fits))
    return found


def _inspected(out):
    try:
        facts = json.loads(out.decode("utf-8", "replace"))
        facts = facts[0] if isinstance(facts, list) and facts else {}
    except ValueError:
        facts = {}
    facts = facts if isinstance(facts, dict) else {}
    return {
        "id": facts.get("Id"),
        "digests": facts.get("RepoDigests") or [],
        "architecture": facts.get("Architecture"),
    }


def _pull(program, name, environment):
    """`docker pull`, with its progress in the job's log."""
    child = os.fork()
    if not child:
        try:
            kernel.die_with_parent(9)
            words = procs.to_argv([program, "pull", name])
            os.execve(words[0], words, environment)
        finally:
            os._exit(127)
    if os.waitpid(child, 0)[1]:
        raise SetupFailed(
            CODE,
            "the image {} is not on this host and could not be fetched (see the log). Check its name and the host's "
            "way to the registry, or bring it with `docker save` and `docker load`".format(name),
        )


def physical(device, cards, say):
    """`{card: number of its /dev/davinciN}` by the vendor's map; empty where cards and device files have one number.

    A map that does not know a card stops the job: a wrong number is a colleague's card.
    """
    if device != "npu" or not cards:
        return {}
    from .accelerators import ask, npu, npu_text

    tool = ask.find(npu.KIND)
    text = ""
    if tool is not None:
        import time

        folder = ask.private_folder()
        try:
            environment = ask.environment(npu.KIND)
            text = ask.run([tool, b"info", b"-m"], environment, folder or b"/", time.monotonic() + 20).out
        finally:
            if folder:
                ask.remove_folder(folder)
    mapping = npu_text.parse_map(text)
    if not mapping:
        say("`npu-smi info -m` did not tell the numbers of the device files: the cards' own numbers are taken")
        return {}
    known = {logical: number for logical, number, _ in mapping.values()}
    missing = [card for card in cards if card not in known]
    if missing:
        raise SetupFailed(
            CODE,
            "`npu-smi info -m` does not list card {}, so that its device file is not known".format(
                ", ".join(str(card) for card in missing)
            ),
        )
    return {card: known[card] for card in cards if known[card] is not None}


def nodes(device, cards, numbers):
    """`(files of the host that the container gets, groups that may use them)`. SetupFailed if a card's is missing."""
    there, groups = set(), set()
    ours = set(os.getgroups())
    for path in containers_plan.node_candidates(device, cards, numbers) if cards else ():
        try:
            seen = os.stat(path)
        except OSError:
            continue
        there.add(path)
        if path.startswith("/dev/") and seen.st_gid in ours and seen.st_gid:
            groups.add(seen.st_gid)
    missing = [path for path in containers_plan.card_nodes(device, cards, numbers) if path not in there]
    if missing:
        raise SetupFailed(
            CODE,
            "there is no {} on this host, so the container would not see the job's card: is the driver loaded?".format(
                ", ".join(missing)
            ),
        )
    return there, groups


def shm_bytes():
    """Half of the memory, as the host's own /dev/shm has it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def has_init():
    """True if the engine's little init is where engines look for it."""
    folders = os.environb.get(b"PATH", b"").split(b":")
    folders += [b"/usr/" + name for name in (b"bin", b"sbin", b"local/bin", b"libexec/docker", b"local/libexec/docker")]
    folders += [b"/usr/lib/docker", b"/usr/libexec/podman"]
    return any(os.path.exists(os.path.join(f, n)) for f in folders if f for n in (b"docker-init", b"catatonit"))


# Variables that the client itself acts upon: they reach the container by a file, and the client keeps its own.
CLIENT_OWN = (
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "USER",
    "LOGNAME",
)


def split_variables(values):
    """`(by name, lines for --env-file)` of the variables for a container. Pure; bytes.

    A file cannot hold a line break: such a value goes by name, whatever the client makes of it.
    """
    by_name, lines = {}, []
    for name, value in sorted(values.items()):
        if to_text(name) in CLIENT_OWN and b"\n" not in value and b"\r" not in value and len(value) < 32768:
            lines.append(name + b"=" + value)
        else:
            by_name[name] = value
    return by_name, lines


def as_descriptor(lines):
    """An inherited descriptor that gives these lines once, and its path for `--env-file`; or `(None, None)`."""
    data = b"".join(line + b"\n" for line in lines)
    if not data or len(data) > 60000:
        return None, None
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    os.set_inheritable(read_end, True)
    return read_end, "/proc/self/fd/{}".format(read_end)


def as_input(values):
    """Make our standard input a pipe that gives these values (bytes), `NAME=value` and a NUL each. SetupFailed."""
    import fcntl

    data = b"".join(name + b"=" + value + b"\0" for name, value in sorted(values.items()))
    read_end, write_end = os.pipe()
    if len(data) > 60000:
        try:
            fcntl.fcntl(write_end, _SET_PIPE_SIZE, len(data) + 4096)
        except OSError:
            raise SetupFailed(CODE, "the secrets are larger than 1 MB: put them into a file of the host") from None
    os.write(write_end, data)
    os.close(write_end)
    os.dup2(read_end, 0)
    os.set_inheritable(0, True)
    os.close(read_end)


def clear(layout, engine):
    """Remove stopped containers of jobs that are final here: what a killed supervisor left behind."""
    from . import jobs

    form = '{{.ID}} {{.Label "%s"}}' % containers.LABEL
    words = ["ps", "--all", "--no-trunc", "--filter", "label=" + containers.LABEL, "--filter", "status=exited"]
    for line in (containers.ask(engine, [*words, "--format", form]) or b"").splitlines():
        container, _, job_id = to_text(line).partition(" ")
        if files.to_bytes(job_id).isalnum() and jobs.exists(layout, job_id) and jobs.is_final(layout, job_id):
            containers.ask(engine, ["rm", container])
