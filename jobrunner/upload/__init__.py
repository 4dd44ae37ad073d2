"""What of a folder is sent to a host, and its bytes.

scan.py      scan: a folder as a Tree
walk.py      through the folder; who decides what is left out
rules.py     layers of ignore files; patterns.py: one line of one
gitrepo.py   what git knows of the folder
tree.py      Tree: entries, manifest, report; check_size
hashing.py   SHA-256 in threads; HashCache
reader.py    iter_blobs: the contents as the host asks for them
"""

from __future__ import annotations

from jobrunner.upload.gitrepo import GitState, git_state
from jobrunner.upload.hashing import HashCache
from jobrunner.upload.reader import ChangedError, iter_blobs
from jobrunner.upload.scan import scan
from jobrunner.upload.tree import Entry, Skipped, Tree, check_size

__all__ = [
    "ChangedError",
    "Entry",
    "GitState",
    "HashCache",
    "Skipped",
    "Tree",
    "check_size",
    "git_state",
    "iter_blobs",
    "scan",
]
