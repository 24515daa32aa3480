"""How answers become records, beyond the rules of `rl_dataplane.v1.records`.

Pairs are compiled when the first answer of their kind is read: the command line imports these modules, and reads few.
"""

from __future__ import annotations

from functools import cache

from dataplane_client.meta import Tag
from dataplane_client.records.filters import Where, filter_text
from rl_dataplane.v1.records import Mapper


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
