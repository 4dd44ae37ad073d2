"""The ways to start a job: one file each, and one line here."""

import importlib

# name in the spec: module with `open_terminal(layout, job_id, attempt, log) -> Terminal`
LAUNCHERS = {"nohup": ".nohup", "tmux": ".tmux"}


def get(name):
    """The launcher's module. An unknown name (of a newer client) is started plainly."""
    return importlib.import_module(LAUNCHERS.get(name or "nohup", ".nohup"), __package__)
