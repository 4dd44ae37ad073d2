"""A short-lived process for work that would make a long-lived one big: hashing, copying, walking trees."""

import json
import os

from .files import AgentError, to_text


def close_all_but(keep):
    """Close every descriptor over 2 that is not in `keep`: a child holds nobody's lease or channel."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = range(3, 1024)
    for number in numbers:
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                pass


def run(function, *arguments):
    """What `function(*arguments)` returns in a forked child (JSON). Its AgentError or OSError is raised here."""
    outlet, inlet = os.pipe()
    pid = os.fork()
    if pid == 0:
        _in_child(function, arguments, inlet)
    os.close(inlet)
    try:
        pieces = []
        while True:
            piece = os.read(outlet, 1 << 16)
            if not piece:
                break
            pieces.append(piece)
    finally:
        os.close(outlet)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass  # the caller reaps all its children, and was quicker
    return _unpack(b"".join(pieces))


def _in_child(function, arguments, inlet):
    try:
        close_all_but((inlet,))
        view = memoryview(json.dumps(_attempt(function, arguments)).encode("ascii"))
        while view:
            view = view[os.write(inlet, view) :]
    finally:
        os._exit(0)


def _attempt(function, arguments):
    try:
        return {"value": function(*arguments)}
    except AgentError as error:
        return {"error": error.as_json()}
    except OSError as error:
        return {"errno": error.errno, "path": to_text(error.filename) if error.filename else None}
    except Exception as error:
        message = "the agent failed: {}: {}".format(type(error).__name__, error)
        remedy = "This is a fault of jobrunner: please report it with this text."
        return {"error": {"code": "internal", "message": message, "remedy": remedy}}


def _unpack(data):
    if not data:
        raise AgentError("interrupted", "a helper process was killed before it had finished", "Try again.")
    answer = json.loads(data.decode("ascii"))
    if "error" in answer:
        raise AgentError(answer["error"]["code"], answer["error"]["message"], answer["error"]["remedy"])
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])
    return answer["value"]
