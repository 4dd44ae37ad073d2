"""A reader of ssh_config files for machines without an `ssh` program, with OpenSSH's results for what it knows.

It gives the options in the shape of `ssh -G`. What would need more (`Match exec`, `CanonicalizeHostname`, …) is
refused with file and line, but only where the answer for this host depends on it.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import field

from jobrunner.core.errors import HostError
from jobrunner.core.values import dataclass
from jobrunner.transport.sshconfig import DEFAULT_IDENTITIES, Address, expand_tokens, home_folder, local_user

MAX_INCLUDES = 16

_KNOWN = {
    "hostname", "user", "port", "identitiesonly", "identityagent", "proxyjump", "proxycommand", "userknownhostsfile",
    "globalknownhostsfile", "hostkeyalias", "stricthostkeychecking", "connecttimeout", "revokedhostkeys",
    "addressfamily", "serveraliveinterval", "serveralivecountmax", "identityfile", "certificatefile",
}  # fmt: skip
_SEVERAL = {"identityfile", "certificatefile"}
_LISTS = {"userknownhostsfile", "globalknownhostsfile"}
_YES_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass
class _Reading:
    """What has been found so far, and for which host."""

    wanted: Address
    alias: str
    found: dict[str, list[str]] = field(default_factory=dict)

    def first(self, key: str) -> str | None:
        return self.found[key][0] if key in self.found else None


def read_options(wanted: Address, file: str | None, alias: str) -> dict[str, list[str]]:
    """The options for a host, as `ssh -G` prints them: from `file`, else from the user's and the system's files."""
    reading = _Reading(wanted, alias)
    if wanted.user:
        reading.found["user"] = [wanted.user]
    if wanted.port:
        reading.found["port"] = [str(wanted.port)]
    if file is not None:
        _read_file(reading, file, os.path.join(home_folder(), ".ssh"), 0, True)
    else:
        base = os.path.join(home_folder(), ".ssh")
        _read_file(reading, os.path.join(base, "config"), base, 0, True)
        system = (
            os.path.join(os.environ.get("PROGRAMDATA", "C:\\ProgramData"), "ssh") if os.name == "nt" else "/etc/ssh"
        )
        _read_file(reading, os.path.join(system, "ssh_config"), system, 0, True)
    return _finish(reading)


def _finish(reading: _Reading) -> dict[str, list[str]]:
    found, original = reading.found, reading.wanted.host
    tokens = {"%": "%", "h": original}
    found["hostname"] = [expand_tokens(reading.first("hostname") or original, tokens).lower()]
    found.setdefault("user", [local_user()])
    found.setdefault("port", ["22"])
    found.setdefault("identityfile", list(DEFAULT_IDENTITIES))
    ssh = "~/.ssh/known_hosts"
    found.setdefault("userknownhostsfile", [ssh, ssh + "2"])
    found.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"])
    for key in ("proxyjump", "proxycommand"):
        if (reading.first(key) or "").lower() == "none":
            del found[key]
    return found


def words_of(line: str) -> list[str]:
    """The keyword and arguments of a line: quotes and backslashes as OpenSSH reads them, `#` begins a comment."""
    line = line.strip(" \t\r\n\f")
    if not line or line.startswith("#"):
        return []
    match = re.match(r"([^\s=\"]+|\"[^\"]*\")\s*(?:=\s*)?(.*)\Z", line, re.S)
    if match is None:
        return []
    return [match[1].strip('"'), *_split(match[2])]


def _split(text: str) -> list[str]:
    words, index = [], 0
    while index < len(text):
        if text[index] in " \t":
            index += 1
            continue
        if text[index] == "#":
            break
        word, quote = "", ""
        while index < len(text) and (quote or text[index] not in " \t"):
            char = text[index]
            if char == "\\" and index + 1 < len(text) and text[index + 1] in ("'\"\\" + ("" if quote else " ")):
                word += text[index + 1]
                index += 2
                continue
            if quote and char == quote:
                quote = ""
            elif not quote and char in "'\"":
                quote = char
            else:
                word += char
            index += 1
        words.append(word)
    return words


def matches_pattern(text: str, pattern: str) -> bool:
    """OpenSSH's patterns: `*` is any text, `?` any character, nothing else is special."""
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
    return re.fullmatch("".join(parts), text, re.S) is not None


def matches_list(text: str, patterns: list[str]) -> bool:
    """True if a pattern fits and no negated (`!`) one does."""
    hit = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches_pattern(text, pattern[1:]):
                return False
        elif matches_pattern(text, pattern):
            hit = True
    return hit


def _read_file(reading: _Reading, path: str, base: str, depth: int, active: bool) -> None:
    """Read one file; `active` is False inside a Host or Match block that does not fit (its Includes still parse)."""
    if depth > MAX_INCLUDES:
        raise _refused(reading, path, 0, f"more than {MAX_INCLUDES} levels of Include")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as handle:
            lines = handle.read().split("\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        raise _refused(reading, path, 0, str(error)) from error
    here = active
    for number, line in enumerate(lines, 1):
        words = words_of(line)
        if not words:
            continue
        key, args = words[0].lower(), words[1:]
        if key == "host":
            here = active and matches_list(reading.wanted.host, args)
        elif key == "match":
            here = active and _match(reading, args, path, number)
        elif key == "include":
            for name in _included(args, base):
                _read_file(reading, name, base, depth + 1, here)
        elif here:
            _keep(reading, key, args, line, path, number)


def _included(args: list[str], base: str) -> list[str]:
    files: list[str] = []
    for arg in args:
        path = home_folder() + arg[1:] if arg.startswith("~/") else arg
        files += sorted(glob.glob(path if os.path.isabs(path) else os.path.join(base, path)))
    return files


def _keep(reading: _Reading, key: str, args: list[str], line: str, path: str, number: int) -> None:
    """Keep an option's first value (or all, where it has several). Options that are not ours are passed over."""
    if key == "canonicalizehostname" and args and args[0].lower() in ("yes", "always", "true"):
        raise _refused(reading, path, number, "CanonicalizeHostname needs OpenSSH's own reader")
    if key not in _KNOWN:
        return
    if not args:
        raise _refused(reading, path, number, f"{key} has no value")
    found = reading.found
    if key in ("proxycommand", "proxyjump"):
        if "proxycommand" in found or "proxyjump" in found:
            return  # whichever comes first rules out the other
        rest = re.sub(r"^\s*\S+?(?:\s*=\s*|\s+)", "", line.rstrip("\r\n"), count=1).strip()
        found[key] = [rest if key == "proxycommand" else args[0]]
    elif key in _SEVERAL:
        if args[0] not in found.setdefault(key, []):
            found[key].append(args[0])
    elif key not in found:
        found[key] = args if key in _LISTS else [_value(reading, key, args[0], path, number)]


def _value(reading: _Reading, key: str, text: str, path: str, number: int) -> str:
    if key == "identitiesonly":
        if text.lower() not in _YES_NO:
            raise _refused(reading, path, number, f"{key} is {text!r}, not yes or no")
        return _YES_NO[text.lower()]
    if key == "port" and not (text.isdigit() and 0 < int(text) < 65536):
        raise _refused(reading, path, number, f"{text!r} is not a port")
    if key in ("connecttimeout", "serveraliveinterval") and text.lower() != "none":
        parts = re.findall(r"(\d+)([smhdwSMHDW]?)", text)
        if not parts or "".join(a + b for a, b in parts) != text:
            raise _refused(reading, path, number, f"{text!r} is not a time")
        return str(sum(int(count) * _UNITS[unit.lower()] for count, unit in parts))
    return text


def _match(reading: _Reading, args: list[str], path: str, number: int) -> bool:
    """Whether a Match line fits. A criterion that we cannot judge is refused only if all before it fit."""
    words: list[str] = []
    for arg in args:
        name, equals, value = arg.partition("=")
        words += [name, value] if equals and name.lstrip("!").isalpha() and len(words) % 2 == 0 else [arg]
    fits, index = True, 0
    while index < len(words):
        negated, name = words[index].startswith("!"), words[index].lstrip("!").lower()
        if name == "all":
            fits = fits and not negated
            index += 1
            continue
        takes_value = name not in ("canonical", "final")
        value = words[index + 1] if takes_value and index + 1 < len(words) else ""
        index += 2 if takes_value else 1
        if fits:
            fits = _criterion(reading, name, value, path, number) != negated
    return fits


def _criterion(reading: _Reading, name: str, value: str, path: str, number: int) -> bool:
    patterns = value.split(",")
    original = reading.wanted.host
    if name == "host":
        host = expand_tokens(reading.first("hostname") or original, {"%": "%", "h": original})
        return matches_list(host, patterns)
    if name == "originalhost":
        return matches_list(original, patterns)
    if name == "user":
        return matches_list(reading.first("user") or local_user(), patterns)
    if name == "localuser":
        return matches_list(local_user(), patterns)
    raise _refused(reading, path, number, f"`Match {name}` needs OpenSSH's own reader")


def _refused(reading: _Reading, path: str, number: int, why: str) -> HostError:
    place = f"{path}:{number}" if number else path
    return HostError(
        f"the SSH configuration cannot be read for {reading.wanted.host}: {place}: {why}",
        host=reading.alias,
        code="ssh_config",
        remedy="Install OpenSSH's client, or write out this host's settings in a block of their own before that line.",
    )
