"""All attacks, and what the server may take meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.hostile.attacks import http2, local, remote
from tests.hostile.crowded import SERVICE
from tests.hostile.target import Target

from dataplane_client.errors import DataPlaneError

_PATH = f"/{SERVICE}/GetPartition"


@dataclass(frozen=True)
class Attack:
    """run: goes on until it is closed, a step at a time; the first prepares what the others need. memory_mib: that the
    server may take beside what it had. flags: of the server. fails: what the lives of others may raise meanwhile, as
    documented: an error of a call, or that a read has what the attacker has written over their values.
    """

    run: Callable[[Target], Iterator[None]]
    memory_mib: int = 128
    flags: tuple[str, ...] = ()
    fails: tuple[type[Exception], ...] = ()


_FRUGAL = ("--bookkeeping", "32MiB")

ATTACKS: dict[str, Attack] = {
    "answers unread": Attack(local.unread_answers, 384),
    "half requests": Attack(local.half_requests, 384),
    "strangers": Attack(local.strangers),
    "garbage": Attack(local.garbage),
    "crowded messages": Attack(local.crowded_messages, 256),
    "crowded frames": Attack(remote.crowded_frames, 768),
    "connections": Attack(local.connections),
    "silent connections": Attack(remote.silent_connections, 256),
    "no descriptors": Attack(remote.no_descriptors),
    "lent room": Attack(local.lent_room),
    "slow put": Attack(remote.slow_puts),
    "memory overwritten": Attack(local.overwritten_memory, fails=(DataPlaneError, AssertionError)),
    "malformed requests": Attack(remote.malformed_requests),
    "overload": Attack(remote.overload, 256),
    "waiting claims": Attack(remote.many_views, 256),
    "idle sessions": Attack(remote.idle_sessions, 256),
    "half calls": Attack(remote.half_calls, 768),
    "pings": Attack(partial(remote.http2, data=http2.PINGS)),
    "settings": Attack(partial(remote.http2, data=http2.SETTINGS)),
    "resets": Attack(partial(remote.http2, data=http2.resets(_PATH))),
    "endless headers": Attack(partial(remote.http2, data=http2.endless_headers(_PATH)), 256),
    "tags": Attack(partial(remote.keep, what="tags"), flags=_FRUGAL, fails=(DataPlaneError,)),
    "ids": Attack(partial(remote.keep, what="ids"), flags=_FRUGAL, fails=(DataPlaneError,)),
    "enums": Attack(partial(remote.keep, what="enums"), flags=_FRUGAL, fails=(DataPlaneError,)),
    "released claims": Attack(remote.released_claims, 256),
    "scattered reads": Attack(remote.scattered_reads, 384),
    "scrapes": Attack(remote.scrapes, 384),
    "listings": Attack(remote.listings, 256),
    "scrapes unread": Attack(remote.unread_scrapes, 512),
    "half HTTP requests": Attack(remote.half_http_requests),
}
