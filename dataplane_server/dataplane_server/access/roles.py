"""Roles: which verbs each one allows, in partitions whose names begin with one of its prefixes.

A caller with several roles may do what any of them allows. The prefix "" stands for every partition; verbs that concern
the whole server need a role with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

_MAX_NAME_BYTES = 256
"""As the core takes names of clients."""

Role = Literal["reader", "producer", "consumer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

WRITE_BACK = "PutSamples under a claim"
"""PutSamples of a request with a claim_id."""
METRICS = "metrics"
"""The page of the HTTP listener."""

_LOOKS = frozenset({"GetPartition", "ListPartitions", "GetConsumptionStatus"})
_READS = _LOOKS | {
    "ReadColumns",
    "GetSample",
    "ListSamples",
    "ListClaims",
    "ListGroups",
    "ListDeadLetters",
    "ExplainWaits",
}
_WRITES = frozenset({"PutSamples", "ReserveGroup", "FinishGroup", "AbortGroup"})
_CLAIMS = frozenset({"ClaimSamples", "ClaimShard", "CommitClaim", "ReleaseClaim", "AdoptClaim"})
_TRAINS = frozenset({"DrawSamples", "SetWeightVersion", WRITE_BACK})
_DEFINES = frozenset({"RegisterPartition", "ExtendPartition", "ClosePartition", "DropPartition", "SetPolicies"})
_EMPTIES = frozenset({"ClearSamples", "ResetTask"})
_OF_SERVER = frozenset({"ListSessions", METRICS})
_SNAPSHOTS = frozenset({"CreateSnapshot", "RestoreSnapshot"})

FOR_EVERYBODY = frozenset({"GetServerStatus", "Session"})
"""What a caller with any role may do. A session alone allows nothing."""
CHANGES = _DEFINES | _EMPTIES | _SNAPSHOTS
"""What the log names each caller of."""
VERBS_OF: Mapping[Role, frozenset[str]] = {
    "reader": _READS | _OF_SERVER,
    "producer": _LOOKS | _WRITES,
    "consumer": _READS | _CLAIMS | _TRAINS,
    "admin": _READS | _WRITES | _CLAIMS | _TRAINS | _DEFINES | _EMPTIES | _OF_SERVER | _SNAPSHOTS | {"ListSnapshots"},
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. name: in logs and rows' histories; empty where no access file names callers. roles: prefixes of each;
    None for all verbs everywhere.
    """

    name: str = ""
    roles: Mapping[Role, tuple[str, ...]] | None = field(default=None, hash=False)

    def may(self, verb: str, partition_id: str = "") -> bool:
        """Whether the caller may use a verb in a partition; "" for the whole server."""
        if self.roles is None or verb in FOR_EVERYBODY:
            return True
        return any(verb in VERBS_OF[role] and _covers(prefixes, partition_id) for role, prefixes in self.roles.items())

    @property
    def runs_the_server(self) -> bool:
        """Whether the caller may do everything in every partition."""
        return self.roles is None or _covers(self.roles.get("admin", ()), "")

    def may_somewhere(self, verb: str) -> bool:
        """Whether there can be a partition in which the caller may use a verb."""
        return self.roles is None or any(verb in VERBS_OF[role] for role in self.roles)

    def named(self, client_name: str) -> str:
        """A client's own name, after that of its caller."""
        if not self.name or client_name == self.name or client_name.startswith(f"{self.name}: "):
            return client_name
        text = f"{self.name}: {client_name}" if client_name else self.name
        return text.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")


EVERYTHING = Caller()
"""The caller where nothing is restricted."""


def roles_for(verb: str) -> list[Role]:
    """The roles that allow a verb."""
    return [role for role in ROLES if verb in VERBS_OF[role]]


def _covers(prefixes: Iterable[str], partition_id: str) -> bool:
    return any(partition_id.startswith(prefix) for prefix in prefixes)
