"""The command line: parse, call one service function, print."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from jobrunner.cli import started  # noqa: F401  notes the time: first of all


def main() -> NoReturn:
    """The `jobrunner` program; ends by SystemExit."""
    # Start-up makes 80,000 objects that stay: to go through them, looking for garbage, is 10 ms each time.
    gc.set_threshold(200_000, 20, 20)
    sys.setswitchinterval(0.001)  # the link is opened beside the imports: it must not wait 5 ms at each turn
    try:
        if "_JOBRUNNER_COMPLETE" not in os.environ:
            from jobrunner.service.ahead import begin

            begin(sys.argv[1:], os.environ)
        from jobrunner.cli.lean import without_plugins

        without_plugins()
        from jobrunner.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # during the imports
        code = 130
    except Exception as error:
        from jobrunner.cli.interrupt import was_interrupted

        if not was_interrupted(error):
            raise
        code = 130
    _stop_connecting()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError):  # closed, full or missing: said already, and not to be said again at exit
            from jobrunner.cli.output import hush

            hush(stream)
    sys.exit(code)


def _stop_connecting() -> None:
    """Close a link that was begun ahead and that the command had no use for."""
    ahead = sys.modules.get("jobrunner.service.ahead")
    link = ahead.begun() if ahead is not None else None
    if link is not None:
        link.discard()


def program() -> NoReturn:
    """`main`, and then leave at once: to take the interpreter apart piece by piece costs 30 ms and gives nothing.

    What was promised to run at the end runs (`atexit`), and threads that have to end are waited for.
    """
    try:
        main()
    except SystemExit as leave:
        code = leave.code
    if not isinstance(code, int):
        sys.exit(code)
    import atexit
    import threading

    main_thread = threading.main_thread()
    if any(thread is not main_thread and not thread.daemon for thread in threading.enumerate()):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError, ValueError):
            pass  # closed or missing: `main` has told what can be told
    os._exit(code)
