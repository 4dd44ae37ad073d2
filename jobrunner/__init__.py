"""jobrunner: batch jobs on shared accelerator servers, over SSH only."""

__version__ = "0.1.0"
