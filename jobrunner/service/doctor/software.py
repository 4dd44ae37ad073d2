"""Rules about what a job's Python would find: set-up, versions, the vendor's plug-in, one tensor on a card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobrunner.agent.accelerators import KINDS
from jobrunner.core.amounts import counted
from jobrunner.service.doctor.finding import Facts, Finding, bad, good, part, unsure
from jobrunner.service.doctor.pairs import judged, mismatches
from jobrunner.service.doctor.system import device_of

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

SUM = 8.0
NO_END = "no end within the limit"  # the agent's words for a Python that it had to end (probe_python)
STATIC_TLS = "static TLS"


def _told(facts: Facts) -> Mapping[str, Any]:
    return part(facts, "software")


def _meta(facts: Facts) -> Mapping[str, Any]:
    return _told(facts).get("meta") or {}


def _late(facts: Facts, step: str) -> bool:
    return _told(facts).get("late") == step


def setup(facts: Facts, declared: Host) -> Finding | None:
    """The vendor's scripts and the host's `setup` lines, as before every job."""
    told = _told(facts)
    lines = len(declared.setup)
    scripts = len(part(facts, "vendor").get("scripts") or [])
    if _late(facts, "set-up") or _late(facts, "start"):
        by_hand = f"run them by hand on the host: `setup` of {declared.name} in the hosts file"
        return bad("the set-up lines do not come to an end", by_hand, stops=bool(lines or scripts))
    if told.get("setup_error"):
        return bad(str(told["setup_error"]), f"correct `setup` of {declared.name} in the hosts file", stops=True)
    if not lines and not scripts:
        return good("nothing to run")
    return good(f"{counted(lines, 'line')} of `setup` and {counted(scripts, 'script')} of the vendor ran")


def vendor(facts: Facts, declared: Host) -> Finding | None:
    """CANN's set_env.sh for an NPU; the vendor's toolkit (Neuware, say) where a job gets one set up."""
    device = device_of(facts, declared)
    told = part(facts, "vendor")
    if device == "npu":
        if told.get("scripts"):
            return good(f"CANN: {told['scripts'][0]}")
        return unsure(
            "no set_env.sh of CANN below /usr/local/Ascend, ~/Ascend or /opt/conda/Ascend",
            "install CANN, or source its script in `setup` of the hosts file; jobs in containers need none",
        )
    toolkit = KINDS[device].toolkit if device in KINDS else None
    if toolkit is None or toolkit.variable is None:
        return None
    if told.get("toolkit"):
        return good(f"{toolkit.title}: {told['toolkit']}")
    return unsure(
        f"no {toolkit.title} in ${toolkit.variable} or {toolkit.folder}",
        f"{toolkit.missing}, or set {toolkit.variable} in `env` of the hosts file; jobs in containers need none",
    )


def conda(facts: Facts, declared: Host) -> Finding:
    """Needed for `runtime: {conda: NAME}` only."""
    base = part(facts, "vendor").get("conda")
    if base:
        return good(str(base))
    return unsure(
        "none found on the PATH, in the home folder, /opt or /usr/local",
        "needed for `runtime: {conda: …}` only; elsewhere set CONDA_EXE in `env` of the hosts file",
    )


def job_python(facts: Facts, declared: Host) -> Finding:
    """`python3` as a job finds it after the set-up; scripts that name no other run by it."""
    told, meta = _told(facts), _meta(facts)
    if told.get("setup_error"):
        return unsure("the set-up failed before")
    if meta:
        return good(f"{meta['version']} at {meta['executable']}")
    if told.get("python_error") == NO_END or _late(facts, "python") or _late(facts, "set-up") or _late(facts, "start"):
        return bad("python3 does not come up within the limit", "its folder may lie on a disk that hangs")
    return bad(
        f"no python3 for jobs: {told.get('python_error') or 'no answer'}",
        "install one, put its folder on the PATH in `env` or `setup`, or name it in specs (`runtime: {python: …}`)",
    )


def versions_of(facts: Facts) -> dict[str, str | None]:
    """The versions that are compared, by the names of `pairs`."""
    drivers, report, plugin = part(facts, "drivers"), facts.get("cards") or {}, _told(facts).get("plugin") or {}
    packages = _meta(facts).get("packages") or {}
    plugins = [str(kind.plugin) for kind in KINDS.values() if kind.plugin]
    found: dict[str, str | None] = {name: packages.get(name) for name in ("torch", *plugins, "numpy")}
    found["driver"] = drivers.get("driver") or report.get("driver_version")
    found["toolkit"] = drivers.get("toolkit")
    local = str(found["torch"] or "").partition("+cu")[2]
    found["cuda"] = plugin.get("cuda") or (f"{local[:-1]}.{local[-1]}" if local.isdigit() else None)
    return found


def versions(facts: Facts, declared: Host) -> Finding | None:
    """Driver, toolkit, torch and plug-in are a matched set; a mismatch shows late and oddly in a job."""
    device = device_of(facts, declared)
    if device not in KINDS:
        return None
    found = versions_of(facts)
    shown = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    wrong = mismatches(device, found)
    if wrong:
        return bad("; ".join(item.text for item in wrong), f"{wrong[0].remedy} ({wrong[0].source})")
    if judged(device, found):
        return good(f"{shown}: nothing known against it")
    return unsure(f"not enough is known to compare ({shown or 'no versions found'})", "")


def plugin(facts: Facts, declared: Host) -> Finding | None:
    """torch and the vendor's plug-in imported in a job's Python, and asked whether it sees cards."""
    device = device_of(facts, declared)
    if device not in KINDS:
        return None
    told, meta = _told(facts).get("plugin") or {}, _meta(facts)
    name = KINDS[device].plugin or "torch"
    elsewhere = "jobs in a venv, conda environment or container bring their own"
    if not meta:
        return unsure("no Python to try it in")
    if "torch" not in meta["packages"]:
        return unsure(f"torch is not installed for {meta['executable']}", elsewhere)
    if _late(facts, "import") or told.get("error") == NO_END:
        return bad(
            f"importing {name} does not end", "a card or the driver hangs, or the disk is very slow: try it by hand"
        )
    if told.get("missing") == name:
        return unsure(
            f"{name} is not installed for {meta['executable']}", f"install the one for its torch; {elsewhere}"
        )
    if told.get("error"):
        return bad(f"{told.get('step') or 'import'} failed: {told['error']}", _remedy(str(told["error"]), name))
    if not told.get("available"):
        text = f"torch {told.get('torch')} sees no card ({name}: is_available() is False)"
        return bad(text, "the driver, the device files or the versions do not fit: see the checks above and below")
    return good(f"torch {told.get('torch')} with {name} sees {counted(told.get('count') or 0, 'card')}")


def _remedy(error: str, name: str) -> str:
    table = (
        (STATIC_TLS, "see the check static TLS"),
        (
            "libascend_hal",
            "the driver's libraries are not found: /usr/local/Ascend/driver/lib64/driver on LD_LIBRARY_PATH",
        ),
        ("libhccl", "CANN's set_env.sh was not sourced: see the check vendor set-up"),
        ("libc", "a library of the toolkit is not found: set LD_LIBRARY_PATH in `setup`"),
        ("undefined symbol", f"torch and {name} are not a matched pair: see the check versions"),
        ("NumPy", "`pip install 'numpy<2'` into that Python"),
    )
    return next(
        (remedy for word, remedy in table if word in error), f"import {name} by hand on the host to see all of it"
    )


def tensor(facts: Facts, declared: Host) -> Finding | None:
    """One small sum on a free card, under that card's lease."""
    if device_of(facts, declared) not in KINDS:
        return None
    told = _told(facts).get("tensor")
    if _late(facts, "tensor") or (told or {}).get("error") == NO_END:
        return bad(
            "a sum of four numbers on a free card does not end", "the card or the driver hangs: tell the administrator"
        )
    if not told:
        return unsure("not tried: torch does not see a card")
    if told.get("card") is None:
        return unsure(f"not tried: {told.get('skipped')}")
    if told.get("error"):
        return bad(
            f"card {told['card']}: {told['error']}", "the card is not usable for this user now: see the checks above"
        )
    if told.get("value") != SUM:
        return bad(
            f"card {told['card']} says 2+2+2+2 = {told.get('value')}", "do not use this card; tell the administrator"
        )
    return good(f"card {told['card']} computes")


def static_tls(facts: Facts, declared: Host) -> Finding | None:
    """On aarch64 a libgomp that is loaded late finds no room for its thread-local data."""
    meta = _meta(facts)
    error = str((_told(facts).get("plugin") or {}).get("error") or "")
    if STATIC_TLS in error:
        own = next(iter(meta.get("libgomp") or []), "/usr/lib/aarch64-linux-gnu/libgomp.so.1")
        return bad(error, f"`env: {{LD_PRELOAD: {own}}}` for {declared.name} in the hosts file")
    if meta.get("machine") != "aarch64":
        return None
    if len(meta.get("libgomp") or []) > 1:
        return unsure(
            f"{len(meta['libgomp'])} copies of libgomp in that Python",
            f"if a job says `cannot allocate memory in static TLS block`: LD_PRELOAD={meta['libgomp'][0]}",
        )
    return good("nothing points to it")
