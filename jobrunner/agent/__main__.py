"""What our own processes on a host are started as: `python -I -S agent.pyz MODE …`, from a zipapp or a folder."""

import importlib
import sys

# mode: module of this package, and the function there; it gets the words after the mode
MODES = {
    "rpc": "rpc.main",
    "dispatch": "dispatcher.main",
    "supervise": "supervisor.main",
    "pane": "pane.main",
    "cards": "cards.main_cards",
    "hash": "checkpoints.main",
}


def main(argv=None):
    """Run one mode; its exit code (2 for a mode that does not exist)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in MODES:
        sys.stderr.write("usage: agent ({}) …\n".format(" | ".join(sorted(MODES))))
        return 2
    module, function = MODES[words[0]].split(".")
    package = __package__ or "jobrunner.agent"
    return getattr(importlib.import_module("." + module, package), function)(words[1:]) or 0


if __name__ == "__main__":
    sys.exit(main())
