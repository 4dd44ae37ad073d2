"""What went wrong on a channel with the agent, as errors that say what came back and what to do now. Pure."""

from __future__ import annotations

from typing import Any

from jobrunner.core.errors import AgentError, LinkLostError


def odd(alias: str, what: str) -> AgentError:
    """The error for an answer that is none."""
    return AgentError(
        f"{alias} sent {what}", host=alias, code="bad_answer", remedy="Use the same version of jobrunner everywhere."
    )


def no_message(alias: str, error: Exception) -> AgentError:
    """The error for bytes that are no frame."""
    return AgentError(
        f"{alias} answered with something that is no message: {error}",
        host=alias,
        code="bad_answer",
        remedy="Something on the host writes into the agent's output, or the link is broken; try again.",
    )


def too_late(alias: str) -> LinkLostError:
    """The error for an answer that did not come in time."""
    return LinkLostError(
        f"{alias} did not answer in time",
        host=alias,
        code="timeout",
        remedy="The host may be overloaded or its disk may hang; try again.",
    )


def agent_died(alias: str, code: int, said: str) -> AgentError:
    """The error for an agent that ended with `code` (negative: by a signal) before its answer, saying `said`."""
    how = f"with exit code {code}" if code >= 0 else "by a signal"
    return AgentError(
        f"the agent on {alias} ended {how} before it had answered" + (f": {said}" if said else ""),
        host=alias,
        code="agent_died",
        remedy="Run the command again; if it stays so, look at memory and limits on the host.",
    )


def agent_error(message: dict[str, Any], alias: str) -> AgentError:
    """The agent's own error, passed on with its code."""
    error = message.get("error")
    error = error if isinstance(error, dict) else {}
    return AgentError(
        str(error.get("message") or "the agent reported an error without a text"),
        host=alias,
        code=str(error.get("code") or "agent"),
        remedy=str(error.get("remedy") or ""),
    )


def link_lost(alias: str, transport: Any) -> LinkLostError:
    """The error for a connection that ended, with the reason as far as it shows."""
    farewell = getattr(transport, "farewell", "")
    why = f"the server ended it: {farewell}" if farewell else "it was cut"
    if getattr(transport, "fell_silent", False):
        why = "nothing was heard from it any more"
    return LinkLostError(
        f"the link to {alias} was lost: {why}",
        host=alias,
        remedy="Jobs there go on. Run the command again: whatever reached the host is kept.",
    )
