"""Spec files from disk: read, checked against the folder they lie in, with the secrets that they name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from jobrunner.core.errors import NotFoundError, Problem, SecretError, SpecError, UsageError
from jobrunner.core.inventory import Inventory
from jobrunner.core.spec import JobSpec
from jobrunner.core.specdoc import ENABLED, SpecDocument, read_spec
from jobrunner.core.values import dataclass
from jobrunner.core.words import nearest
from jobrunner.core.yamldoc import MAX_CHARACTERS, decode

_NO_JOB = "no_such_job"


@dataclass(frozen=True)
class LoadedSpec:
    """A spec with what surrounds it. `base` is the spec's folder, `code_dir` the folder to upload."""

    path: Path
    text: str
    spec: JobSpec
    base: Path
    code_dir: Path | None
    secrets: dict[str, str] = field(repr=False)


def load_specs(
    paths: Sequence[Path],
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    secrets_file: Path | None,
    hosts: Inventory,
    find_job: Callable[[str], object] | None = None,
    enabled: Collection[str] = ENABLED,
    want_secrets: bool = True,
) -> list[LoadedSpec]:
    """Read every spec; one SpecError holds all problems of all of them. Nothing is sent and nothing is run.

    `enabled` are the keys beside a plain job's that the caller can act on; `want_secrets=False` leaves secrets alone.

    Secrets are taken from `environ`, else from `secrets_file`. `find_job` raises NotFoundError or UsageError for a word
    of `after` that means no job. If nothing but secrets (or jobs) is missing, the error's code is `secret_missing`
    (`no_such_job`, exit code 5).
    """
    problems: list[Problem] = []
    vault = _Vault(environ, secrets_file)
    reading = _Reading(overrides, enabled, vault if want_secrets else None, hosts, find_job)
    loaded = [_load(path, reading, problems) for path in paths]
    problems += vault.problems
    if problems:
        error = SpecError(list(dict.fromkeys(problems)), remedy=vault.remedy)
        codes = {problem.code for problem in problems}
        if codes <= {SecretError.default_code} or codes == {_NO_JOB}:
            error.code = codes.pop()
        if error.code == _NO_JOB:
            error.exit_code, error.remedy = NotFoundError.exit_code, "see `jobrunner ls --all`, or `jobrunner adopt`"
        raise error
    return [spec for spec in loaded if spec is not None]


def take_secrets(names: Sequence[str], environ: Mapping[str, str], secrets_file: Path | None) -> dict[str, str]:
    """The values of secrets for a job that no file describes (a retry, a schedule); SecretError names the missing."""
    vault = _Vault(environ, secrets_file)
    found = {name: value for name in names if (value := vault.get(name)) is not None}
    missing = [name for name in names if name not in found]
    if vault.problems:
        raise SecretError("; ".join(str(problem) for problem in vault.problems), remedy=vault.remedy)
    if missing:
        raise SecretError(f"not set: {', '.join(missing)}", remedy=vault.remedy)
    return found


@dataclass(frozen=True)
class _Reading:
    """What is the same for all specs that are read together. `vault` is None where secrets are not wanted."""

    overrides: Sequence[str]
    enabled: Collection[str]
    vault: _Vault | None
    hosts: Inventory
    find_job: Callable[[str], object] | None


def _load(path: Path, reading: _Reading, problems: list[Problem]) -> LoadedSpec | None:
    text = _read(path)
    if isinstance(text, Problem):
        problems.append(text)
        return None
    document = read_spec(text, str(path), reading.overrides, default_name=_stem(path), enabled=reading.enabled)
    spec, base = document.spec or document.partial, path.absolute().parent
    if spec is None:
        problems += document.problems
        return None
    code_dir = None if spec.code is None else base / Path(spec.code.path).expanduser()
    found = _host_problems(document, spec, reading.hosts) + _after_problems(document, spec, reading.find_job)
    if "metrics" not in document.broken:
        found += _metric_problems(document, spec)
    if "code" not in document.broken:
        found += _code_problems(document, spec, code_dir)
    secrets: dict[str, str] = {}
    if reading.vault is not None:
        secrets, missing = _secrets(document, spec, reading.vault)
        found += missing
    document.problems += found
    problems += document.ordered()
    return LoadedSpec(path, text, spec, base, code_dir, secrets)


def _secrets(document: SpecDocument, spec: JobSpec, vault: _Vault) -> tuple[dict[str, str], list[Problem]]:
    """The values of a spec's secrets, and a problem for each that is missing."""
    secrets: dict[str, str] = {}
    missing = []
    for place, name in enumerate(spec.secrets):
        value = vault.get(name)
        if value is not None:
            secrets[name] = value
            continue
        where = f" nor in {vault.file}" if vault.file else ""
        message = f"the secret {name} is not in the environment{where}"
        missing.append(document.problem_at(("secrets", place), message, code=SecretError.default_code))
    return secrets, missing


def _read(path: Path) -> str | Problem:
    if path.suffix in (".py", ".sh"):
        text = "this is a script; submit takes a spec, the YAML file that says how to run it"
        return Problem(str(path), None, None, text, _spec_in(path.parent))
    try:
        with path.open("rb") as handle:
            data = handle.read(4 * MAX_CHARACTERS + 4)
    except FileNotFoundError:
        return Problem(str(path), None, None, "there is no such file", _near_file(path.parent, path.name))
    except IsADirectoryError:
        return Problem(str(path), None, None, "this is a folder; name the spec file in it", _spec_in(path))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        return Problem(str(path), None, None, f"the file cannot be read: {said}")
    return decode(data, str(path))


def _spec_in(folder: Path) -> str:
    """The one YAML file of a folder that can be a spec; empty if there are none or several."""
    found = [path for path in folder.glob("*.y*ml") if path.name != "hosts.yaml"]
    return str(found[0]) if len(found) == 1 else ""


def _stem(path: Path) -> str:
    """A job's name from its file's: what cannot stand in a name is left out."""
    shown = "".join(sign for sign in path.stem if sign.isprintable()).strip(" ")[:200].strip(" ")
    return shown or "job"


def _near_file(folder: Path, name: str) -> str:
    try:
        return nearest(name, sorted(entry.name for entry in folder.iterdir())[:2000])
    except OSError:
        return ""


def _code_problems(document: SpecDocument, spec: JobSpec, code_dir: Path | None) -> list[Problem]:
    if code_dir is None:
        return []
    at = ("code", "path")
    try:
        if not code_dir.is_dir():
            kind = "is not a folder" if code_dir.exists() else "does not exist"
            return [document.problem_at(at, f"code: the folder {os.path.normpath(code_dir)} {kind}")]
    except (OSError, ValueError) as error:
        return [document.problem_at(at, f"code: the folder cannot be looked at: {error}")]
    if spec.script is None or (code_dir / spec.script).is_file():
        return []
    wanted = code_dir / spec.script
    near = _near_file(wanted.parent, wanted.name)
    if near and wanted.parent != code_dir:
        near = (wanted.parent / near).relative_to(code_dir).as_posix()
    kind = "is a folder" if wanted.is_dir() else "is not there"
    return [document.problem_at(("script",), f"script: {spec.script!r} {kind} in the code folder {code_dir}", near)]


def _host_problems(document: SpecDocument, spec: JobSpec, hosts: Inventory) -> list[Problem]:
    """Names that are a known host's but for case or dashes. Any other may be an alias of the SSH configuration."""
    known = {_loose(alias): alias for alias in hosts.hosts}
    return [
        document.problem_at(("hosts", place), f"no host is called {name!r}", known[_loose(name)])
        for place, name in enumerate(spec.hosts)
        if name not in hosts.hosts and _loose(name) in known
    ]


def _metric_problems(document: SpecDocument, spec: JobSpec) -> list[Problem]:
    """Metrics that this machine could not read."""
    boards = [name for name, source in spec.metrics.items() if isinstance(source, dict) and "tensorboard" in source]
    if not boards:
        return []
    from jobrunner.service import eventfiles

    if eventfiles.readable():
        return []
    text = f"reading TensorBoard's event files needs the extra `sweep`: {eventfiles.REMEDY}"
    return [document.problem_at(("metrics", name), text) for name in boards]


def _after_problems(document: SpecDocument, spec: JobSpec, find_job: Callable[[str], object] | None) -> list[Problem]:
    """Words of `after` that mean no job that is known here."""
    if find_job is None:
        return []
    found = []
    for place, item in enumerate(spec.after):
        try:
            find_job(item.job)
        except (NotFoundError, UsageError) as error:
            code = _NO_JOB if isinstance(error, NotFoundError) else error.code
            found.append(document.problem_at(("after", place), f"after: {error.message.rstrip('.')}", code=code))
    return found


def _loose(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign not in "-_. ")


class _Vault:
    """The environment first, then secrets.env, which is opened only if something is missing. Never shows a value."""

    def __init__(self, environ: Mapping[str, str], file: Path | None) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.missing: list[str] = []
        self._refused = ""
        self._environ = environ
        self._from_file: dict[str, str] | None = None

    def get(self, name: str) -> str | None:
        """The value of a secret, or None."""
        if name in self._environ:
            return self._environ[name]
        if self._from_file is None:
            self._from_file = self._read_file()
        if name not in self._from_file and name not in self.missing:
            self.missing.append(name)
        return self._from_file.get(name)

    @property
    def remedy(self) -> str:
        """What to do about a refused file, else about all that is missing; empty if nothing is."""
        if self._refused or not self.missing:
            return self._refused
        names = " and ".join(self.missing)
        them = "it" if len(self.missing) == 1 else "them"
        return f"set {names} in the environment" + (f", or add {them} to {self.file}" if self.file else "")

    def _read_file(self) -> dict[str, str]:
        if self.file is None:
            return {}
        try:
            with self.file.open("rb") as handle:
                refusal = _too_open(os.fstat(handle.fileno()))
                data = b"" if refusal else handle.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            refusal, data = f"the file cannot be read: {error.strerror}", b""
        if refusal:
            self.problems.append(Problem(str(self.file), None, None, refusal, code="secrets_file"))
            self._refused = f"chmod 600 {self.file}"
            return {}
        return self._lines(data)

    def _lines(self, data: bytes) -> dict[str, str]:
        """KEY=VALUE lines; a value is everything after the first `=`, quotes included."""
        values: dict[str, str] = {}
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            name, equals, value = text.partition("=")
            name = name.strip().removeprefix("export ").strip()
            if not equals or not name.isidentifier() or not name.isascii():
                self.problems.append(
                    Problem(str(self.file), number, 1, "this line is not KEY=VALUE", code="secrets_file")
                )
                continue
            values[name] = value
        return values


def _too_open(status: os.stat_result) -> str:
    """Why a file of secrets is refused; empty if it is a person's own and nobody else's to read."""
    if not stat.S_ISREG(status.st_mode):
        return "this is not a file"
    if os.name != "posix":
        return ""
    if status.st_uid != os.geteuid():
        return "the file belongs to another user; secrets are read from one's own file only"
    if status.st_mode & 0o077:
        return f"others can read or change this file (mode {stat.S_IMODE(status.st_mode):04o}); it must be 0600"
    return ""
