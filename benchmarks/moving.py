"""Big files and many small ones: to the host and back."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from itertools import count
from pathlib import Path

from following import big
from measure import OURS, Taken, alternate, timed, walls
from places import Bench, ByHand, BySubmit, flush
from report import Aim

from tests.support.lab import Client, Lab

FILES, FILE_BYTES = 2000, 10_000


def _turns(bench: Bench, trip: float) -> int:
    return bench.few(2 if trip else 3)  # at 50 ms scp takes half a minute for a gigabyte


def _scp(client: Client) -> list[str]:
    return ["scp", "-q", "-F", str(client.folder / "ssh_config")]


def pull(bench: Bench) -> None:
    """One checkpoint of 1 GB, beside `scp`. Ours is checked against its hash, and is kept under its name once whole."""
    with bench.labs() as [lab], bench.client([lab]) as (first, _):
        source = first.folder / "source.pt"
        big(source, bench.mb)
        spec = f"device: cpu\ncode: null\ncheckpoints: {{paths: ['*.pt']}}\ncommand: [cp, {str(source)!r}, step1.pt]\n"
        id_ = first.submit(spec, "saves")
        first.until(id_, "COMPLETED", seconds=120)
        [item] = [item for item in first.json("checkpoints", id_)["checkpoints"] if item["name"].endswith("step1.pt")]
        path = next(lab.job_folder(id_).rglob("step1.pt"))
        source.unlink()
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                client.env["JOBRUNNER_HOME"] = first.env["JOBRUNNER_HOME"]
                target = client.folder / "pulled"

                def ours(client: Client = client, target: Path = target) -> Taken:
                    shutil.rmtree(target, ignore_errors=True)
                    words = ["checkpoints", id_, "--pull", str(item["name"]), "--to", str(target)]
                    took = timed([*OURS, *words], client.env, client.folder)
                    assert sum(file.stat().st_size for file in target.rglob("*.pt")) == path.stat().st_size
                    return took

                def theirs(client: Client = client, target: Path = target) -> Taken:
                    shutil.rmtree(target, ignore_errors=True)
                    target.mkdir()
                    return timed([*_scp(client), f"{lab.alias}:{path}", str(target)], client.env, client.folder)

                turns = alternate(_turns(bench, trip), ours, theirs)
                what = f"pull of one checkpoint of {bench.mb / 1000:g} GB"
                bench.report.ratio(what, walls(turns, 0), "scp", walls(turns, 1), Aim(0.3 if trip else 1.05), trip=trip)


def upload(bench: Bench) -> None:
    """One file of 1 GB in the code, which the host does not have; beside `scp` of it."""
    with bench.labs() as [lab]:
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                code = client.folder / "large"
                code.mkdir()
                big(code / "weights.bin", bench.mb)
                (code / "spec.yaml").write_text("name: large\ndevice: cpu\ncommand: ['true']\n")
                (client.folder / "tiny").mkdir()
                shutil.copy(code / "spec.yaml", client.folder / "tiny")
                submit = BySubmit(lab, client, "--large")
                target = lab.folder / "by-hand"
                target.mkdir(exist_ok=True)

                def ours(code: Path = code, submit: BySubmit = submit, lab: Lab = lab) -> Taken:
                    flush(bench.folder)
                    took = submit(code)
                    submit.forget()
                    for job in lab.root.glob("hosts/*/jobs/*"):  # a gigabyte each
                        shutil.rmtree(job / "1" / "work", ignore_errors=True)
                    return took

                def theirs(code: Path = code, client: Client = client, target: Path = target) -> Taken:
                    flush(bench.folder)
                    took = timed([*_scp(client), str(code / "weights.bin"), f"{lab.alias}:{target}/"], client.env, code)
                    (target / "weights.bin").unlink()
                    return took

                submit(client.folder / "tiny")
                turns = alternate(_turns(bench, trip), ours, theirs)
                what = f"`submit` with one new file of {bench.mb / 1000:g} GB"
                bench.report.ratio(what, walls(turns, 0), "scp", walls(turns, 1), Aim(0.5 if trip else 1.0), trip=trip)


def small_files(bench: Bench) -> None:
    """2,000 files of 10 kB that a job has made, beside `rsync -a` of them."""
    program = (
        "import os; place = os.environ['JOBRUNNER_OUTPUT_DIR']\n"
        f"for n in range({FILES}):\n"
        "    folder = os.path.join(place, str(n % 20)); os.makedirs(folder, exist_ok=True)\n"
        f"    open(os.path.join(folder, 'f%d' % n), 'wb').write(os.urandom({FILE_BYTES}))\n"
    )
    with bench.labs() as [lab], bench.client([lab]) as (first, _):
        id_ = first.submit("device: cpu\ncommand: [python3, make.py]\n", "makes", make__py=program)
        first.until(id_, "COMPLETED", seconds=120)
        source = lab.job_folder(id_) / "out"
        # Where files have just been removed ext4 takes long to make new ones; so nothing is, until the end.
        place, numbers = bench.place(), count()
        for trip in bench.trips:
            with bench.client([lab], trip) as (client, _):
                client.env["JOBRUNNER_HOME"] = first.env["JOBRUNNER_HOME"]
                hand = ByHand(lab, client)

                def ours(client: Client = client) -> Taken:
                    target = place / f"pulled{next(numbers)}"
                    took = timed([*OURS, "pull", id_, "--to", str(target)], client.env, client.folder)
                    assert _digest(target) == _digest(source)
                    return took

                def theirs(client: Client = client, hand: ByHand = hand) -> Taken:
                    target = place / f"pulled{next(numbers)}"
                    argv = ["rsync", "-a", "-e", shlex.join(hand.ssh), f"{lab.alias}:{source}/", f"{target}/"]
                    return timed(argv, client.env, client.folder)

                ours()
                turns = alternate(bench.few(5), ours, theirs)
                what = f"pull of {FILES:,} files of {FILE_BYTES // 1000} kB"
                bench.report.ratio(
                    what, walls(turns, 0), "rsync -a", walls(turns, 1), Aim(0.7 if trip else 0.8), trip=trip
                )


def _digest(folder: Path) -> str:
    """The contents of all files, whatever folders they lie in."""
    found = sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.rglob("f*") if file.is_file())
    assert len(found) == FILES, f"{len(found)} files in {folder}"
    return hashlib.sha256("".join(found).encode()).hexdigest()
