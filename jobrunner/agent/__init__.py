"""The part of jobrunner that runs on the host: Python 3.6 or newer, standard library only.

It imports nothing else of jobrunner, so that it can be packed into one zipapp. Paths on the host are bytes; text
is UTF-8 with surrogateescape, whatever the host's locale says.
"""

if "/agent/agent-" in __file__:  # unpacked on a host, where our processes run from
    from . import bytecode  # noqa: F401
