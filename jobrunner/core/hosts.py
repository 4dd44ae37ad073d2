"""The hosts file: its keys, their checks and their schema. What commands work with is made of it: `core.inventory`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, StrictInt, ValidationError

from jobrunner.core.devices import kinds
from jobrunner.core.document import Document
from jobrunner.core.errors import SpecError
from jobrunner.core.fields import (
    Alias,
    Device,
    EnvName,
    Indices,
    LauncherName,
    Line,
    Model,
    PositiveLength,
    Shape,
    Tag,
    Written,
    model_keys,
)
from jobrunner.core.inventory import Host, Inventory, Waits, parse_address
from jobrunner.core.patterns import ADDRESS_PATTERN
from jobrunner.core.words import Fault, Path, faults_of, found, one_of, refuse


def _address(value: Any) -> str:
    if not isinstance(value, str):
        refuse(f"found {found(value)}; write [user@]host[:port]")
    try:
        parse_address(value)
    except ValueError as error:
        refuse(f"found {found(value)}, which {error}")
    return str(value)


def _root(value: Any) -> str:
    if not isinstance(value, str) or not re.search(_ROOT_PATTERN, value):
        refuse(f"found {found(value)}; write a folder that begins with / or ~/")
    return str(value)


_ROOT_PATTERN = r"^(?:/|~/)[^\u0000-\u001f\ud800-\udfff]+$"


class HostSpec(Model):
    """One host. What is None is found out by looking."""

    name: Alias = Field(default="host", exclude=True, description="The SSH alias.")
    address: Annotated[str, PlainValidator(_address), Shape({"type": "string", "pattern": ADDRESS_PATTERN})] | None = (
        Field(default=None, description="[user@]host[:port], if the SSH configuration does not know the alias.")
    )
    transport: Literal["fabric", "openssh", "auto"] = Field(
        default="auto",
        description="What carries the connection: fabric; openssh (the ssh program, whose connection later commands "
        "share); auto (fabric, unless a shared connection is up or the SSH configuration needs openssh).",
    )
    device: Device | None = Field(default=None, description="The kind of its cards; found out by looking.")
    cards: StrictInt | None = Field(
        default=None, ge=0, le=4096, description="How many cards, only for a host whose vendor tool cannot be asked."
    )
    only_cards: Indices | None = Field(default=None, description="Never use other cards than these.")
    max_cards: StrictInt | None = Field(default=None, ge=1, le=4096, description="At most so many of mine at once.")
    cpu_jobs: StrictInt | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Jobs without cards at once; default: a quarter of the cores, at least 1.",
    )
    tags: tuple[Tag, ...] = Field(default=(), description="Words that specs can ask for.")
    root: Annotated[str, PlainValidator(_root), Shape({"type": "string", "pattern": _ROOT_PATTERN})] = Field(
        default="~/.jobrunner", description="Folder on the host."
    )
    python: Line = Field(
        default="python3", description="The host's own interpreter for jobrunner's agent, 3.6 or newer."
    )
    setup: tuple[Line, ...] = Field(default=(), description="Lines for bash, run before every job there.")
    env: dict[EnvName, Written] = Field(default={}, description="Variables for every job there.")
    launcher: LauncherName = Field(default="nohup", description="How jobs are started if their spec does not say.")
    on_reboot: Literal["none", "crontab"] = Field(
        default="none", description="crontab: an @reboot line while something is queued there."
    )

    def plain(self) -> Host:
        """What commands work with."""
        return Host(**{key: getattr(self, key) for key in type(self).model_fields})


class Settings(Model):
    """How long to wait for hosts."""

    connect_timeout: PositiveLength = Field(
        default="10s", validate_default=True, description="For a connection to be made and keys to be accepted."
    )
    request_timeout: PositiveLength = Field(default="20s", validate_default=True, description="For an answer.")
    retry_for: PositiveLength = Field(
        default="90s",
        validate_default=True,
        description="How long connections refused for load are tried again, in all.",
    )


def _nothing_is_default(value: Any) -> Any:
    return {} if value is None else value


Entry = Annotated[HostSpec, BeforeValidator(_nothing_is_default, json_schema_input_type=HostSpec | None)]


class HostsFile(Model):
    """All hosts that are known by a file; others are taken from the SSH configuration as they are."""

    hosts: Annotated[
        dict[Alias, Entry], BeforeValidator(_nothing_is_default, json_schema_input_type=dict[Alias, Entry] | None)
    ] = Field(default={}, description="Hosts by their SSH alias.")
    ssh_config: Line | None = Field(default=None, description="The SSH configuration to use; default: ~/.ssh/config.")
    settings: Settings = Field(default_factory=Settings, description="How long to wait for hosts.")

    def plain(self) -> Inventory:
        """What commands work with."""
        return Inventory(
            hosts={alias: host.plain() for alias, host in self.hosts.items()},
            ssh_config=self.ssh_config,
            settings=Waits(**{key: getattr(self.settings, key) for key in Settings.model_fields}),
        )


def load_hosts(text: str, file: str) -> Inventory:
    """Read a hosts file; SpecError with every problem in it. A file without any value means no hosts."""
    document = Document.of(text, file)
    if document.root is None and [p.message for p in document.problems] == ["the file is empty"]:
        return Inventory()
    if document.problems:
        raise SpecError(document.problems)
    data = document.data(_written)
    if not isinstance(data, dict):
        raise SpecError([document.problem_at((), "a hosts file is a mapping with the key `hosts`", code="hosts")])
    hosts, faults = _validated(data)
    document.problems += [
        document.problem_at(f.path, f.message, f.suggestion, "hosts", on_key=f.on_key) for f in faults
    ]
    if document.problems:
        raise SpecError(document.ordered())
    return hosts.plain()


def _validated(data: dict[str, Any]) -> tuple[HostsFile, list[Fault]]:
    """The hosts, or those that are right by themselves, and every fault."""
    faults = _own_names(data)
    try:
        hosts = HostsFile.model_validate(_named(data))
        return hosts, faults + _faults(hosts)
    except ValidationError as error:
        # A bad alias is told once, at its key.
        found = faults_of(error.errors(include_url=False), _keys_at)
        faults += [f for f in found if len(f.path) != 3 or f.path[2] != "name"]
    entries = data.get("hosts")
    broken = {f.path[1] for f in faults if f.path[:1] == ("hosts",) and len(f.path) > 1}
    if isinstance(entries, dict):
        try:
            rest = {alias: entry for alias, entry in entries.items() if alias not in broken}
            faults += _faults(HostsFile.model_validate(_named({"hosts": rest})))
        except ValidationError:
            pass
    return HostsFile(), faults


def _written(path: Path) -> bool:
    return len(path) == 4 and path[0] == "hosts" and path[2] == "env"


def _keys_at(path: Path) -> list[str]:
    keys = model_keys(HostSpec, path[2:]) if path[:1] == ("hosts",) and len(path) > 1 else model_keys(HostsFile, path)
    return [key for key in keys if key != "name"]


def _named(data: dict[str, Any]) -> dict[str, Any]:
    """The data with each host's alias as its name."""
    hosts = data.get("hosts")
    if not isinstance(hosts, dict):
        return data
    return {**data, "hosts": {alias: _with_name(alias, entry) for alias, entry in hosts.items()}}


def _own_names(data: dict[str, Any]) -> list[Fault]:
    """A host is named by its key: `name` is an unknown key like any other, although our model has it."""
    hosts = data.get("hosts")
    named = [a for a, e in hosts.items() if isinstance(e, dict) and "name" in e] if isinstance(hosts, dict) else []
    return [
        Fault(("hosts", alias, "name"), f"the key 'name' is not known in hosts.{alias}", on_key=True) for alias in named
    ]


def _with_name(alias: str, entry: Any) -> Any:
    if entry is None:
        entry = {}
    if not isinstance(entry, dict):
        return entry
    return {**entry, "name": alias}


def _faults(hosts: HostsFile) -> list[Fault]:
    faults = []
    for alias, host in hosts.hosts.items():
        at: Path = ("hosts", alias)
        if host.cards and host.device in (None, "cpu"):
            faults.append(Fault((*at, "cards"), f"`cards` needs `device`: {one_of(kinds())}", on_key=True))
        for place, index in enumerate(host.only_cards or ()):
            if host.cards is not None and index >= host.cards:
                where = (*at, "only_cards", place)
                faults.append(Fault(where, f"there is no card {index}: `cards` says {host.cards}, counted from 0"))
    return faults
