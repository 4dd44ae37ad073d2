"""TensorBoard's events, as a host hands them on: one at a time, read with the classes of the extra `sweep`."""

from __future__ import annotations

import base64
import importlib.util
import struct
from collections.abc import Iterator
from typing import Any

from jobrunner.core.errors import UsageError
from jobrunner.core.values import dataclass

REMEDY = "pip install 'jobrunner[sweep]'"
_FLOAT, _DOUBLE = 1, 2


@dataclass(frozen=True)
class Scalar:
    """One number of an event. `at` is seconds since 1970."""

    tag: str
    step: int
    value: float
    at: float


def readable() -> bool:
    """True if event files can be read here."""
    return importlib.util.find_spec("tensorboardX") is not None


def scalars(encoded: Any) -> Iterator[Scalar]:
    """The scalars of one event (base64); what is none is passed over. UsageError where the extra is missing."""
    try:
        from tensorboardX.proto.event_pb2 import Event
    except ImportError as error:
        raise UsageError(
            f"reading TensorBoard's event files needs the extra `sweep`: {error}", code="no_extra", remedy=REMEDY
        ) from error
    event: Any = Event()
    try:
        event.ParseFromString(base64.b64decode(encoded))
    except Exception:  # whatever protobuf makes of bytes that are no event: they are passed over
        return
    for item in event.summary.value:
        value = _number(item)
        if value is not None:
            yield Scalar(item.tag, event.step, value, event.wall_time)


def _number(item: Any) -> float | None:
    """The number of one value of a summary; None if it holds something else (an image, a histogram)."""
    if item.HasField("simple_value"):
        return float(item.simple_value)
    if not item.HasField("tensor"):
        return None
    tensor = item.tensor
    for values in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(values) == 1:
            return float(values[0])
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(tensor.dtype)
    if form and len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.tensor_content)[0])
    return None
