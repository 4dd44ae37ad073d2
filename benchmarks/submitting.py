"""`submit`: ten files, 2,000 files, again over a shared connection, and 200 jobs at once."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import slurm
from measure import OURS, Taken, alternate, timed, walls
from places import Bench, ByHand, BySubmit, flush, folder
from report import Aim

from tests.support.lab import Client, Lab

BY_HAND = "rsync, ssh nohup"
MANY, BY_HAND_TIMES = 200, 20


def ten_files(bench: Bench) -> None:
    """Ten files, cold: through Fabric and through OpenSSH's client, beside the same by hand."""
    aims = {"Fabric": (1.0, 0.7), "OpenSSH's client": (0.8, 0.6)}
    with bench.labs() as [lab]:
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                small = folder(client.folder / "small", 10, 2000)
                hand = ByHand(lab, client)
                fabric = BySubmit(lab, client, "--transport", "fabric")
                openssh = BySubmit(lab, client, "--transport", "openssh")

                def cold(openssh: BySubmit = openssh, small: Path = small) -> Taken:
                    openssh.disconnect()
                    return openssh(small)

                fabric(small), cold(), hand(small)  # the agent is there, and the hint where to connect ahead
                openssh.disconnect()
                turns = alternate(bench.rounds, lambda: fabric(small), cold, lambda: hand(small))  # noqa: B023
                for which, (name, limits) in enumerate(aims.items()):
                    aim = Aim(limits[trip > 0])
                    what = f"`submit`, ten files, cold, {name}"
                    bench.report.ratio(what, walls(turns, which), BY_HAND, walls(turns, 2), aim, trip=trip)
                    if not trip:
                        cpu = min(turn[which].cpu for turn in turns)
                        theirs = min(turn[2].cpu for turn in turns)
                        bench.report.ratio(f"the same, {name}, least CPU of the client", [cpu], BY_HAND, [theirs], None)


def again(bench: Bench) -> None:
    """Ten files again within minutes, over a connection that is shared; by hand through a ControlMaster that is up."""
    with bench.labs() as [lab], tempfile.TemporaryDirectory(prefix="jr-") as place:
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                small = folder(client.folder / "small", 10, 2000)
                master = Master(client, lab, Path(place) / f"s{trip:g}")
                hand = ByHand(lab, client, *master.options)
                ours = BySubmit(lab, client, "--transport", "openssh")
                with master:
                    ours(small), ours(small), hand(small)
                    turns = alternate(bench.rounds, lambda: ours(small), lambda: hand(small))  # noqa: B023
                bench.report.ratio(
                    "`submit` again, shared connection", walls(turns, 0), f"{BY_HAND}, ControlMaster", walls(turns, 1),
                    Aim(2 if trip else 5), trip=trip,
                )  # fmt: skip


class Master:
    """A ControlMaster that somebody has started by hand."""

    def __init__(self, client: Client, lab: Lab, socket: Path) -> None:
        self.options = ["-o", f"ControlPath={socket}", "-o", "ControlPersist=900"]
        self._ssh = ["ssh", "-F", str(client.folder / "ssh_config"), *self.options]
        self._alias = lab.alias

    def __enter__(self) -> Master:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*self._ssh, "-M", "-N", "-f", self._alias], check=True, timeout=60, **quiet)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._ssh, "-O", "exit", self._alias], check=False, capture_output=True, timeout=60)


def many_files(bench: Bench) -> None:
    """2,000 files, 20 MB: the host has none of it, all of it, all but one file."""
    with bench.labs() as [lab]:
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                big = folder(client.folder / "big", 2000, 10000)
                hand, ours = ByHand(lab, client), BySubmit(lab, client, "--transport", "fabric")

                def first(side: ByHand | BySubmit, big: Path = big) -> Taken:
                    side.forget()
                    flush(bench.folder)
                    return side(big)

                def changed(side: ByHand | BySubmit, big: Path = big) -> Taken:
                    file = big / "pkg7" / "mod7.py"
                    file.write_text(f"{file.read_text()}# again\n")
                    return side(big)

                ours(big), hand(big)
                cases = (
                    ("first", first, (0.9, 0.8)), ("unchanged", lambda side: side(big), (0.8, 0.5)),  # noqa: B023
                    ("one changed", changed, (0.8, 0.5)),
                )  # fmt: skip
                for name, way, limits in cases:
                    turns = alternate(bench.few(5), lambda: way(ours), lambda: way(hand))  # noqa: B023
                    what, aim = f"`submit`, 2,000 files, 20 MB, {name}", Aim(limits[trip > 0])
                    bench.report.ratio(what, walls(turns, 0), BY_HAND, walls(turns, 1), aim, trip=trip)


def many_jobs(bench: Bench) -> None:
    """200 jobs in one command, as a sweep and as 200 specs; by hand one after the other, and as an array of Slurm's."""
    with bench.labs(cards=1) as [lab], bench.client([lab]) as (client, _):
        code = folder(client.folder / "many", 10, 2000)
        holder = client.submit("device: npu\ncommand: [sleep, '900']\ngrace: 0s\n", "holder")  # nothing else starts
        client.until(holder, "RUNNING")
        text = "name: many\ndevice: npu\ncommand: ['true']\n"
        sweep = code / "sweep.yaml"
        sweep.write_text(f"{text}env: {{N: '{{n}}'}}\nsweep: {{parameters: {{n: {{min: 1, max: {MANY}, step: 1}}}}}}\n")
        specs = [code / f"one{number}.yaml" for number in range(MANY)]
        for number, spec in enumerate(specs):
            spec.write_text(f"{text}env: {{N: '{number}'}}\n")
        hand = ByHand(lab, client)
        hand(code)

        def submit(*paths: Path) -> Taken:
            return timed([*OURS, "submit", *map(str, paths)], client.env, client.folder)

        def by_hand() -> Taken:
            took = hand(code, BY_HAND_TIMES)
            return Taken(took.wall * MANY / BY_HAND_TIMES, took.cpu * MANY / BY_HAND_TIMES)

        submit(sweep)
        turns = alternate(bench.few(3), lambda: submit(sweep), lambda: submit(*specs), by_hand)
        peer = f"{MANY} × {BY_HAND} (of {BY_HAND_TIMES})"
        for which, name in enumerate(("a sweep", "200 specs")):
            what = f"`submit` of {MANY} jobs in one command, {name}"
            bench.report.ratio(what, walls(turns, which), peer, walls(turns, 2), Aim(0.02))
        _beside_slurm(bench, lab, client, code, lambda: submit(sweep))


def _beside_slurm(bench: Bench, lab: Lab, client: Client, code: Path, submit: object) -> None:
    what, peer = f"`submit` of {MANY} jobs in one command, a sweep", "rsync, ssh sbatch --array"
    if not slurm.available():
        bench.report.missing(what, "Slurm")
        return
    hand = ByHand(lab, client)
    with slurm.cluster(bench.place()) as cluster:
        cluster.hold()
        (code / "array.sh").write_text("#!/bin/sh\ntrue\n")
        ssh = shlex.join(hand.ssh)
        environ = f"SLURM_CONF={shlex.quote(str(cluster.conf))}"
        launch = f"cd {hand.target} && {environ} sbatch -Q -o /dev/null --array=1-{MANY} array.sh"
        copy = f"rsync -a -e {shlex.quote(ssh)} {code}/ {lab.alias}:{hand.target}/"
        script = f"{copy} && {ssh} {lab.alias} {shlex.quote(launch)}"

        def array() -> Taken:
            return timed(["bash", "-c", script], client.env, client.folder)

        array()
        turns = alternate(bench.few(3), submit, array)  # type: ignore[arg-type]
        bench.report.ratio(what, walls(turns, 0), peer, walls(turns, 1), Aim(1.0))
