"""Bringing the agent to a host: one zipapp with the same bytes everywhere, and the command line that starts it.

The command line is understood by every login shell, since it has no newline, `!`, backslash, or quote inside quotes.
The program in it is read by Python 2.7 too, so that an old interpreter can be named instead of failing oddly.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import jobrunner.agent
from jobrunner.core.errors import UsageError
from jobrunner.core.values import dataclass

HASH_LENGTH = 16
_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = "import sys\nfrom jobrunner.agent.__main__ import main\nsys.exit(main())\n"

# What runs on the host before the agent does. "@" stands for a newline. It writes a newline, the fence, a newline, and
# a status line; for `W` it then takes the zipapp from its input and answers with another status line.
_PROGRAM = """
import sys
sys.path = [p for p in sys.path if p]
import os
home, name, size, fence = sys.argv[1:5]
end = chr(10)
def say(text):
    os.write(1, (text + end).encode("utf-8", "replace"))
def fail(text):
    say("X " + text.replace(end, " "))
    sys.exit(0)
def install():
    import hashlib, shutil, zipfile
    data, left = [], int(size)
    while left:
        piece = os.read(0, min(left, 65536))
        if len(piece) == 0:
            sys.exit(0)
        data.append(piece)
        left -= len(piece)
    data = b"".join(data)
    if hashlib.sha256(data).hexdigest()[:len(name)] == name:
        aside = tree + "." + str(os.getpid()) + ".tmp"
        try:
            with open(aside + ".pyz", "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            with zipfile.ZipFile(aside + ".pyz") as packed:
                packed.extractall(aside)
            try:
                os.rename(aside, tree)
            except OSError:
                pass
            os.rename(aside + ".pyz", tree + ".pyz")
        finally:
            shutil.rmtree(aside, True)
            if os.path.exists(aside + ".pyz"):
                os.unlink(aside + ".pyz")
    else:
        fail("the agent arrived damaged")
if sys.version_info < (3, 6):
    say(end + fence + end + "V %d.%d" % sys.version_info[:2])
    sys.exit(0)
os.umask(0o77)
root = os.path.expanduser(bytes.fromhex(home))
tree = os.path.join(os.fsdecode(root), "agent", "agent-" + name)
try:
    there = os.stat(tree + ".pyz").st_size == int(size) and os.path.isfile(tree + "/jobrunner/agent/rpc.py")
except OSError:
    there = False
say(end + fence + end + ("H " if there else "W ") + os.environ.get("SHELL", ""))
try:
    if there == False:
        os.makedirs(os.path.dirname(tree), 0o700, exist_ok=True)
        install()
        say("H")
except OSError as error:
    fail("%s: %s" % (error.filename or tree, error.strerror))
sys.path.insert(0, tree)
from jobrunner.agent import rpc
rpc.WARM = sys.argv[5:6]
rpc.serve(root, name)
"""

# Runs a program given as words in hexadecimal, each behind an x: for commands that need a terminal.
_WORDS = (
    "import sys,os;w=[bytes.fromhex(a[1:]) for a in sys.argv[1:]];"
    "w[0]=os.path.expanduser(w[0]);os.execvp(w[0],w)"
)  # fmt: skip


@dataclass(frozen=True)
class AgentImage:
    """The agent as one zipapp: `hash` (16 hex digits) names it on every host."""

    hash: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


def _sources() -> list[tuple[str, os.DirEntry[str]]]:
    """The agent's files: name in the zipapp and place here, in a fixed order. Every submit lists them."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    ahead = [("jobrunner/agent", os.path.dirname(str(jobrunner.agent.__file__)))]
    while ahead:
        name, folder = ahead.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".json")):
                    found.append((f"{name}/{entry.name}", entry))
                elif entry.name != "__pycache__" and entry.is_dir():
                    ahead.append((f"{name}/{entry.name}", entry.path))
    return sorted(found, key=lambda item: item[0])


def build_image() -> AgentImage:
    """Pack the agent: the same bytes on every machine (fixed times and order, stored, LF line ends)."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        texts = [("__main__.py", _MAIN.encode()), ("jobrunner/__init__.py", b"")]
        texts += [(name, Path(entry.path).read_bytes().replace(b"\r\n", b"\n")) for name, entry in _sources()]
        for name, text in texts:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, text)
    data = packed.getvalue()
    return AgentImage(hashlib.sha256(data).hexdigest()[:HASH_LENGTH], data)


def agent_image(cache: Path | None = None) -> AgentImage:
    """The packed agent, from `cache` where nothing has changed since it was packed, else anew (and kept there)."""
    if cache is None:
        return build_image()
    stats = [(name, status.st_size, status.st_mtime_ns) for name, entry in _sources() for status in [entry.stat()]]
    key = hashlib.sha256(json.dumps(stats).encode()).hexdigest()
    file = cache / "agent.pyz"
    try:
        kept = file.read_bytes()
        if kept[:64].decode("ascii", "replace") == key:
            data = kept[64:]
            return AgentImage(hashlib.sha256(data).hexdigest()[:HASH_LENGTH], data)
    except OSError:
        pass
    image = build_image()
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = cache / f"agent.{os.getpid()}.tmp"
        aside.write_bytes(key.encode() + image.data)
        os.replace(aside, file)
    except OSError:
        pass  # it is only quicker with it
    return image


def bootstrap_command(root: str, python: str, image: AgentImage, fence: str, warm: str = "") -> str:
    """The line for the host's login shell that starts the agent (see docs/host.md). `warm` is an operation that it
    may get ready for before it is asked."""
    program = _PROGRAM.strip().replace("\n", "@")
    code = f'exec("""{program}""".replace("@",chr(10)))'
    return (
        f"exec {interpreter_word(python)} -E -s -S -c '{code}' {root.encode('utf-8', 'surrogateescape').hex()} "
        f"{image.hash} {image.size} {fence} {warm}".rstrip()
    )


def words_command(python: str, words: list[str]) -> str:
    """A line for any login shell that runs these very words as a program."""
    packed = " ".join("x" + word.encode("utf-8", "surrogateescape").hex() for word in words)
    return f"exec {interpreter_word(python)} -E -s -S -c '{_WORDS}' {packed}"


def interpreter_word(python: str) -> str:
    """The interpreter as one word for any shell; `~/` is the home folder. Raises UsageError for what cannot be one."""
    if not python or re.search(r"['!\\\x00-\x1f\x7f]", python) or python.startswith("-"):
        raise UsageError(
            f"`python: {python!r}` cannot be the name of an interpreter",
            remedy="Give a name or path without quotes, backslashes and exclamation marks.",
        )
    if python.startswith("~/"):
        return f"\"$HOME\"'{python[1:]}'"
    return python if re.fullmatch(r"[\w./+-]+", python) else f"'{python}'"
