"""Rules about cards: the vendor's tool, device files and groups, drivers, containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobrunner.agent.accelerators import KINDS
from jobrunner.core.amounts import counted
from jobrunner.core.words import one_of
from jobrunner.service.doctor.finding import Facts, Finding, bad, good, part, size, unsure
from jobrunner.service.doctor.system import device_of

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

SLOW_TOOL_S = 5.0
LOW_IMAGES = 10 * 2**30


def _report(facts: Facts) -> dict[str, Any]:
    return dict(facts.get("cards") or {})


def _trouble(facts: Facts) -> tuple[str, str, str]:
    """Code, message and remedy of a card report's error; empty texts if there is none."""
    error = _report(facts).get("error")
    if not error:
        return "", "", ""
    if isinstance(error, dict):
        return str(error.get("code") or "tool"), str(error.get("message") or ""), str(error.get("remedy") or "")
    return "tool", str(error), ""


def _has_cards(facts: Facts, declared: Host) -> bool:
    return device_of(facts, declared) in KINDS


def tool_found(facts: Facts, declared: Host) -> Finding | None:
    """The vendor's tool on the PATH of commands, or where vendors put it."""
    if not _has_cards(facts, declared):
        return None
    device = device_of(facts, declared)
    code, message, remedy = _trouble(facts)
    if code == "tool_missing":
        return bad(message, remedy)
    if _report(facts).get("assumed"):
        return unsure(f"not asked: the hosts file says `cards: {declared.cards}`", "remove `cards` once the tool works")
    return good(f"{KINDS[device].tool} {_report(facts).get('tool_version') or ''}".strip())


def tool_answers(facts: Facts, declared: Host) -> Finding | None:
    """A tool that hangs means that a card or its driver hangs."""
    if not _has_cards(facts, declared) or _report(facts).get("assumed"):
        return None
    code, message, remedy = _trouble(facts)
    if code == "tool_missing":
        return unsure("there is no tool to ask")
    if code and code != "library_missing":
        return bad(message, remedy)
    took = float(_report(facts).get("tool_s") or 0.0)
    if code:
        return unsure("its libraries are missing")
    if took > SLOW_TOOL_S:
        remedy = "a card or the driver is in trouble (`dmesg`), or many ask it at once"
        return bad(f"answers after {took:.1f} s", remedy, stops=False)
    return good(f"answers in {took:.1f} s")


def tool_libraries(facts: Facts, declared: Host) -> Finding | None:
    """Without the driver's libraries on their path neither the tool nor any program finds a card."""
    if not _has_cards(facts, declared) or _report(facts).get("assumed"):
        return None
    code, message, remedy = _trouble(facts)
    if code == "library_missing":
        return bad(message, remedy)
    return unsure("the tool did not get that far") if code else good("the driver's libraries are found")


def cards(facts: Facts, declared: Host) -> Finding:
    """Whether there are cards to give to jobs."""
    report = _report(facts)
    found = report.get("cards") or []
    code, message, remedy = _trouble(facts)
    if found and not code:
        free = sum(1 for card in found if card.get("free"))
        return good(f"{len(found)} {report.get('device')}, {free} free ({report.get('tool_version')})")
    if declared.device == "cpu":
        return good("none, as the hosts file says")
    remedy = remedy or f"`device: cpu` for {declared.name} in the hosts file, if it has none"
    tools = one_of(str(kind.tool) for kind in KINDS.values())
    text = message or f"no {tools} was found, and no card on the bus"
    return unsure(text, remedy) if declared.device is None and not code else bad(text, remedy)


def declared_cards(facts: Facts, declared: Host) -> Finding | None:
    """What the hosts file says of the cards, against what is there."""
    found = [card.get("index") for card in _report(facts).get("cards") or []]
    if not found:
        return None
    if declared.device and _report(facts).get("device") not in (None, declared.device):
        return bad(
            f"the hosts file says {declared.device}, the host has {_report(facts)['device']}",
            f"correct `device` of {declared.name} in the hosts file",
        )
    unknown = sorted(index for index in declared.only_cards or () if index not in found)
    if unknown:
        return bad(
            f"`only_cards` names {', '.join(map(str, unknown))}; there are {', '.join(map(str, found))}",
            f"correct `only_cards` of {declared.name}: jobs wait for ever for cards that are not there",
            stops=not set(declared.only_cards or ()) & set(found),
        )
    return good("the hosts file fits what is there")


def health(facts: Facts, declared: Host) -> Finding | None:
    """Cards in alarm are not given out."""
    found = _report(facts).get("cards") or []
    if not found:
        return None
    sick = [card for card in found if card.get("health") == "bad"]
    if sick:
        names = ", ".join(f"{card['index']} ({card.get('health_text') or 'bad'})" for card in sick)
        return bad(f"in alarm: {names}", "these cards are not given out; tell the administrator")
    warned = [str(card["index"]) for card in found if card.get("health") == "warning"]
    if warned:
        return unsure(
            f"warnings on {', '.join(warned)}", "they are still given out; look at them with the vendor's tool"
        )
    return good("no card is in alarm")


def doubts(facts: Facts, declared: Host) -> Finding | None:
    """A card about which something is unknown is never free."""
    found = [card for card in _report(facts).get("cards") or [] if card.get("doubts")]
    if not _report(facts).get("cards"):
        return None
    if found:
        text = "; ".join(f"{card['index']}: {card['doubts'][0]}" for card in found[:3])
        return unsure(text, "such cards are not given out, as nobody knows whether they are in use")
    return good("everything that is needed is known of every card")


def strangers(facts: Facts, declared: Host) -> Finding | None:
    """Memory in use with nobody to show for it: another container, or a process that hangs in the driver."""
    found = _report(facts).get("cards") or []
    if not found:
        return None
    held = [card for card in found if "no process is shown" in str(card.get("why_busy") or "")]
    if held:
        names = ", ".join(str(card["index"]) for card in held)
        return unsure(
            f"{'card' if len(held) == 1 else 'cards'} {names} in use and no process is shown",
            "another container may hold it, or a hung process: `fuser -v` on the device files, as root",
        )
    return good("whoever uses a card is shown")


def nodes(facts: Facts, declared: Host) -> Finding | None:
    """The device files that a program opens."""
    if not _has_cards(facts, declared):
        return None
    told = part(facts, "nodes")
    paths = {item["path"] for item in told["files"]}
    missing = [path for path in KINDS[device_of(facts, declared)].needed if path not in paths]
    if not missing:
        return good(counted(len(paths), "device file"))
    hint = "load the driver, or in a container pass the files in (`--device`)"
    return unsure(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there", hint)


def node_access(facts: Facts, declared: Host) -> Finding | None:
    """Whether this session may open the device files: a group's member must have logged in since."""
    if not _has_cards(facts, declared):
        return None
    files = part(facts, "nodes")["files"]
    groups = part(facts, "groups")
    closed = [item for item in files if not item["ours"]]
    if not closed:
        return good("this session may use them") if files else unsure("there are no device files")
    names = sorted({item["group"] for item in closed})
    found = f"{closed[0]['path']} (mode {closed[0]['mode']:03o}, group {closed[0]['group']}) is closed to this session"
    waiting = [name for name in names if name in groups["listed"] and name not in groups["session"]]
    if waiting:
        return bad(
            f"{found}, although {groups['user']} is in {', '.join(waiting)}",
            "log in again: end every session of yours there (tmux, jobs, shared SSH connections), then return",
            stops=True,
        )
    joins = [name for name in names if name not in groups["listed"]]
    remedy = f"`usermod -aG {','.join(joins or names)} {groups['user']}` as root, then log in again"
    return bad(found, remedy, stops=True)


def docker(facts: Facts, declared: Host) -> Finding:
    """The client, and a daemon that answers; needed for `runtime: {docker: …}` only."""
    told, more = part(facts, "docker"), part(facts, "runtimes")
    needed = "needed for `runtime: {docker: …}` only"
    if not told["path"]:
        return unsure("not installed", needed)
    socket = more.get("socket")
    if socket and not socket["ours"]:
        return unsure(f"its socket belongs to the group {socket['group']}", f"{needed}; see the check docker group")
    if told.get("error"):
        return unsure(str(told["error"]), f"{needed}; start the daemon (`systemctl start docker`)")
    free = more.get("root_free_bytes")
    if free is not None and free < LOW_IMAGES:
        return bad(
            f"server {told.get('server')}, {size(free)} free for images", "`docker system prune`, or a larger disk"
        )
    return good(f"server {told.get('server')}")


def docker_group(facts: Facts, declared: Host) -> Finding | None:
    """Only members of the socket's group (and root) may use the daemon, from their next login on."""
    socket = part(facts, "runtimes").get("socket")
    if not socket:
        return None
    groups = part(facts, "groups")
    if socket["ours"]:
        return good(f"this session may use the socket (group {socket['group']})")
    if socket["group"] in groups["listed"]:
        return bad(f"{groups['user']} is in {socket['group']}, but not this session", "log in again everywhere")
    return unsure(
        f"{groups['user']} is not in {socket['group']}",
        f"`usermod -aG {socket['group']} {groups['user']}` as root, then log in again; such a member can become root",
    )


def docker_runtime(facts: Facts, declared: Host) -> Finding | None:
    """The vendor's runtime in docker. Jobs pass device files by themselves; only `--gpus` needs it (NVIDIA's)."""
    runtimes = part(facts, "runtimes").get("runtimes")
    if not runtimes or not _has_cards(facts, declared):
        return None
    container = KINDS[device_of(facts, declared)].container
    wanted = container.runtime
    if wanted is None:
        return good("jobs get the device files themselves")
    if wanted in runtimes:
        return good(f"{wanted} is registered")
    if container.gpus:
        return bad(f"nvidia is not among {', '.join(runtimes)}", "install nvidia-container-toolkit and restart docker")
    return unsure(f"{wanted} is not among {', '.join(runtimes)}", "not needed: jobs get the device files themselves")
