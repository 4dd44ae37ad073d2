"""Where promoted models come to on this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jobrunner.service.promote import home_of


def test_no_two_targets_share_a_folder(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(home=tmp_path)
    targets = [
        "models/x",
        "models-x",
        "~/models/x",
        "/models/x",
        "models/x/",
        "Models/x",
        "models//x",
        "ü/x",
        "ä/x",
        "..",
        "-",
    ]
    folders = [home_of(session, target) for target in targets]
    assert folders[0] == tmp_path / "models" / "models-x"
    names = {folder.name.lower() for folder in folders}  # on some disks small and capital letters are the same
    assert len(names) == len(targets)
    assert {folder.parent for folder in folders} == {tmp_path / "models"}
    assert not any(folder.name.startswith((".", "-")) for folder in folders)
