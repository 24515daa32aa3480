"""All attacks: what each sends, and what the server may take meanwhile.

Two kinds cost other clients more than three times their wait, and have a bound of their own (p99_ms). A call as large
as a call may be holds the event loop for tens to hundreds of milliseconds, whether it is refused or served. A flood of
HTTP/2 frames keeps gRPC's threads busy, which share the cores with the event loop: on two cores it waits for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.hostile.attacks import http2, local, remote
from tests.hostile.crowded import SERVICE
from tests.hostile.target import Target

_PATH = f"/{SERVICE}/GetPartition"


@dataclass(frozen=True)
class Attack:
    """run: goes on until it is closed, a step at a time; the first prepares what the others need. sent: what a step
    sends. memory_mib: that the server may take beside what it had. flags: of the server. refuses: whether calls of
    others may fail meanwhile, as documented. p99_ms: of the probe, that is accepted beyond three times that alone.
    """

    run: Callable[[Target], Iterator[None]]
    sent: str
    memory_mib: int = 128
    flags: tuple[str, ...] = ()
    refuses: bool = False
    p99_ms: float = 0.0


_FRUGAL = ("--bookkeeping", "32MiB")

ATTACKS: dict[str, Attack] = {
    "answers unread": Attack(local.unread_answers, "1,000 reads of 1 MiB on a connection, no answer read", 384),
    "half requests": Attack(local.half_requests, "19 of 20 MiB of a request on a connection", 384, p99_ms=20),
    "strangers": Attack(local.strangers, "19 MiB on a connection without a session"),
    "garbage": Attack(local.garbage, "random bytes and 200 descriptors on a connection"),
    "crowded messages": Attack(local.crowded_messages, "a message of millions of parts, 19 MiB", 256, p99_ms=150),
    "crowded frames": Attack(
        remote.crowded_frames, "a frame of millions of parts over gRPC, 19 MiB", memory_mib=768, p99_ms=200
    ),
    "connections": Attack(local.connections, "an attached client and an idle connection, up to 2,000 of each"),
    "silent connections": Attack(remote.silent_connections, "a silent connection to gRPC, up to 3,000", 256),
    "no descriptors": Attack(remote.no_descriptors, "a scrape, while connections have all descriptors"),
    "lent room": Attack(local.lent_room, "nothing: 36 of 64 MiB are lent"),
    "slow put": Attack(remote.slow_puts, "a byte of a put of 36 MiB"),
    "memory overwritten": Attack(local.overwritten_memory, "zeros over all shared memory", refuses=True),
    "malformed requests": Attack(remote.malformed_requests, "a request that breaks the contract, and random bytes"),
    "overload": Attack(remote.overload, "a call, without waiting for the last", 256, p99_ms=30),
    "waiting claims": Attack(remote.many_views, "50 claims that wait, each for other fields, and a put", 256),
    "idle sessions": Attack(remote.idle_sessions, "a session of an hour", 256),
    "half calls": Attack(remote.half_calls, "16 KiB each of 120 calls of 20 MiB without their last byte", 768),
    "pings": Attack(partial(remote.http2, data=http2.PINGS), "10,000 pings of HTTP/2", p99_ms=60),
    "settings": Attack(partial(remote.http2, data=http2.SETTINGS), "10,000 settings of HTTP/2", p99_ms=60),
    "resets": Attack(
        partial(remote.http2, data=http2.resets(_PATH)), "1,000 calls that are cancelled at once", p99_ms=60
    ),
    "endless headers": Attack(
        partial(remote.http2, data=http2.endless_headers(_PATH)),
        "16 MB of headers of a call",
        memory_mib=256,
        p99_ms=100,
    ),
    "tags": Attack(partial(remote.keep, what="tags"), "200 rows with 64 tags", flags=_FRUGAL, refuses=True, p99_ms=20),
    "ids": Attack(partial(remote.keep, what="ids"), "2,000 rows with long ids", flags=_FRUGAL, refuses=True, p99_ms=40),
    "enums": Attack(partial(remote.keep, what="enums"), "a partition with 1,000 names", flags=_FRUGAL, refuses=True),
    "released claims": Attack(remote.released_claims, "a claim of 60,000 rows and its release", 256, p99_ms=60),
    "scattered reads": Attack(remote.scattered_reads, "a read of 65,536 rows in random order", 384, p99_ms=150),
    "scrapes": Attack(remote.scrapes, "1 MiB of the metrics of 1,000 partitions with 64 tasks", 384, p99_ms=40),
    "listings": Attack(remote.listings, "a listing of 1,000 partitions with 64 tasks", 256, p99_ms=20),
    "scrapes unread": Attack(remote.unread_scrapes, "a scrape that is not read, up to 300", memory_mib=512, p99_ms=60),
    "half HTTP requests": Attack(remote.half_http_requests, "half a request for metrics, up to 300"),
}
