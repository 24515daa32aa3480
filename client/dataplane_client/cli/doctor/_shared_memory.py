"""Whether values of this process would travel through the server's memory: by attaching to it, as a client does."""

from __future__ import annotations

import errno
from pathlib import Path

from dataplane_client._channel import checked_target
from dataplane_client._shared_arena import SharedArena, local_addresses
from dataplane_client._socket_rights import RIGHTS_ADVICE, owner_text, process_text
from dataplane_client.cli._words import size_text
from dataplane_client.cli.doctor._check import Check
from rl_dataplane.v1 import data_plane_pb2 as pb

_NAME = "shared memory"


def shared_memory_check(address: str, answer: pb.GetServerStatusResponse) -> Check:
    """Warns where values travel over gRPC instead, with the reason."""
    if not answer.HasField("shared_memory"):
        found = "values travel over gRPC: the server shares no memory"
        return Check(_NAME, "warning", found, "start it without --no-share-memory, on Linux")
    target, budget = checked_target(address), size_text(answer.memory_budget_bytes)
    reasons, errors = [], []
    for place in local_addresses(target, answer.shared_memory):
        try:
            SharedArena(place, answer.shared_memory.nonce)
        except OSError as error:  # noqa: PERF203  # there are two
            errors.append(error)
            reasons.append(_reason(place, error))
        else:
            return Check(_NAME, "ok", f"values travel through it: {budget}, attached at {_shown(place)}")
    found = f"values travel over gRPC: {'; '.join(reasons)}"
    return Check(_NAME, "warning", found, _advice(target, errors))


def _shown(place: str) -> str:
    """An abstract socket as ss(8) writes it."""
    return place.replace("\0", "@")


def _reason(place: str, error: OSError) -> str:
    shown, abstract = _shown(place), place.startswith("\0")
    if isinstance(error, PermissionError):
        return f"permission denied on {shown}: {_owner(place)}{process_text()}"
    if isinstance(error, FileNotFoundError):
        return f"there is no {shown}"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {shown}{' in this network namespace' if abstract else ''}"
    if abstract and (error.errno in (errno.ECONNRESET, errno.EPIPE) or "shares no memory" in str(error)):
        return f"{shown} serves the server's own user alone, and {process_text()}"
    return f"{shown}: {error}"


def _owner(place: str) -> str:
    try:
        return f"{owner_text(Path(place))}; "
    except OSError:  # it lies in a folder that may not be searched
        return ""


def _advice(target: str, errors: list[OSError]) -> str:
    if any(isinstance(error, PermissionError) for error in errors):
        return RIGHTS_ADVICE
    if target.startswith("unix:"):
        return "mount the folder of the socket whole, so that FILE.local is in it, too"
    return "if the server runs on this host, let it listen at a Unix socket, too, and connect to that"
