"""Requests, parsed from bytes that a peer has chosen.

A message of 20 MiB may have ten million parts, and each that becomes a Python object costs a microsecond and a hundred
bytes. So the parts of a long message are counted in its encoding before protobuf makes anything of them, up to a bound,
and the entries of its repeated fields before they are converted. The core checks shorter messages, and everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from rl_dataplane.v1.frames import MAX_PARTS, Nested, TooManyPartsError, check_parts

M = TypeVar("M", bound=Message)

_SHORT_BYTES = 32 * 1024
"""A message of this size has too few parts to take a noticeable time."""
_SCALARS = (str, bytes, int, float)
_LIMIT_OF_FIELD = {
    "columns": "max_fields",
    "fields": "max_fields",
    "per_token_fields": "max_fields",
    "required_fields": "max_fields",
    "enums": "max_fields",
    "dtypes": "max_fields",
    "names": "max_enum_names",
    "tasks": "max_tasks",
    "row_shape": "max_dimensions",
}


class Messages:
    """Parses requests within the limits of a server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def parse(self, kind: type[M], data: bytes, what: str = "message") -> M:
        """Refusal INVALID_REQUEST if the bytes are no such message, or if it has too many parts or entries."""
        if len(data) > 2 * MAX_PARTS:
            try:
                check_parts(data, _nested(kind.DESCRIPTOR))
            except TooManyPartsError as error:
                raise Refusal(Reason.INVALID_REQUEST, f"{what} has {error}", max_parts=MAX_PARTS) from None
        try:
            message = kind.FromString(data)
        except DecodeError:
            raise Refusal(Reason.INVALID_REQUEST, f"{what} is not a valid {kind.DESCRIPTOR.name}") from None
        if len(data) > _SHORT_BYTES:
            self._check_entries(message)
        return message

    def _check_entries(self, message: Message) -> None:
        for field, value in message.ListFields():
            if isinstance(value, Message):
                self._check_entries(value)
            elif not isinstance(value, _SCALARS):
                self._check_count(field.name, len(value))
                if field.message_type is not None:
                    for entry in value.values() if isinstance(value, Mapping) else value:
                        self._check_entries(entry)

    def _check_count(self, field: str, count: int) -> None:
        limit = _LIMIT_OF_FIELD.get(field, "max_rows_per_call")
        most = getattr(self._limits, limit)
        if count > most:
            text = f"{field} has {count} entries; the limit is {most} ({limit})"
            raise Refusal(Reason.INVALID_REQUEST, text, **{limit: most})


def _nested(descriptor: Any) -> Nested:
    """What `check_parts` looks into: messages and packed numbers. descriptor: protobuf has two classes of them."""
    texts = FieldDescriptor.CPPTYPE_STRING
    return {
        field.number: None if field.message_type is None else _nested(field.message_type)
        for field in descriptor.fields
        if field.cpp_type != texts
    }
