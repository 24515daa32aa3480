"""How answers become records, beyond the rules of `rl_dataplane.v1.records`.

Pairs are compiled when the first answer of their kind is read: the command line imports these modules, and reads few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from dataplane_client.records.filters import Where, filter_text
from dataplane_client.records.meta import Tag
from rl_dataplane.v1.records import Mapper

M = TypeVar("M")
R = TypeVar("R")


def compiled_later(make: Callable[[], Callable[[M], R]]) -> Callable[[M], R]:
    """Decorate a function that compiles what reads a message: the first message has it compiled."""
    compiled = cache(make)
    return lambda message: compiled()(message)


@cache
def mapper() -> Mapper:
    return Mapper(
        reads={dict[str, Tag]: lambda _: unpacked_tags, Where | None: lambda _: filter_text},
        writes={},
        unknown=lambda enum, number: ValueError(f"{enum} has no name for {number}"),
    )


def unpacked_tags(packed: bytes) -> dict[str, Tag]:
    """Empty for no bytes."""
    if not packed:
        return {}
    import msgpack

    tags: dict[str, Tag] = msgpack.unpackb(packed)
    return tags
