"""`init` and `close`: which server this process uses.

The address comes from the configuration (`backend.RLDataPlane.address`), else from DATAPLANE_SERVER, else from the Ray
job, where the first `init` has published it. If none names one, the first `init` starts a server on this host, which
its `close`, or its end, ends. In a Ray job whatever the first `init` uses is published, so workers call `init()`.
Other parts of the configuration, such as another storage_backend, need not change and mean nothing here.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dataplane_client.client import connect
from dataplane_client.observe import log_event
from dataplane_transfer_queue import _job_address
from dataplane_transfer_queue._not_served import sampler_name
from dataplane_transfer_queue._rows import Rows
from dataplane_transfer_queue._server import ServerProcess

if TYPE_CHECKING:
    from omegaconf import DictConfig

BLOCK = "RLDataPlane"
"""The name of our block in `backend`."""

_HOW = (
    f"name the server: backend.{BLOCK}.address in the configuration of init, or the environment variable "
    "DATAPLANE_SERVER, as unix:///path or host:port"
)


@dataclass
class Attached:
    """A process and its server. job: what the job knows of it. conf: what `init` returned. owned: what `close` ends,
    in the process `pid`.
    """

    rows: Rows
    job: dict[str, Any]
    conf: DictConfig | Mapping[str, Any] | None = None
    server: ServerProcess | None = None
    keeper: Any = None
    pid: int = field(default_factory=os.getpid)


_lock = threading.Lock()
_attached: Attached | None = None


def init(conf: DictConfig | Mapping[str, Any] | None = None) -> DictConfig | Mapping[str, Any] | None:
    """Connect this process to a server, and start one if there is none; see the top of this module.

    conf: a DictConfig or mapping. `backend.RLDataPlane` may have `address`, or flags of the server that is started,
    such as `memory: 64GiB` and `data_dir: /data`. `metrics.enabled` and `metrics.port` make it serve metrics on
    127.0.0.1, and `controller.polling_mode` makes get_meta return an empty meta instead of waiting.

    Returns the configuration with the address in it, for `init` in other processes; None where the Ray job named the
    server. A second call changes nothing. Raises RuntimeError, which says how to name a server, if there is none and
    none can be started, or the job's is on another host; UnavailableError if the server does not answer in 30 s.
    """
    global _attached
    with _lock:
        if _attached is None:
            _attached = _attach(_part({"conf": conf}, "conf"))
        return _attached.conf


def close() -> None:
    """Disconnect this process; does nothing if it is not connected. Where `init` started the server, end it."""
    global _attached
    with _lock:
        attached, _attached = _attached, None
    if attached is None or attached.pid != os.getpid():
        return
    attached.rows.client.close()
    _job_address.withdraw(attached.keeper)
    if attached.server is not None:
        attached.server.stop()


atexit.register(close)


def attached() -> Attached:
    """This process's server. Connects a process that did not call `init`, if a server is named; else RuntimeError."""
    if _attached is None and (os.environ.get("DATAPLANE_SERVER") or _job_address.find() is not None):
        init()
    if _attached is None:
        raise RuntimeError(f"TransferQueue is not initialized in this process: call init(), or {_HOW}")
    return _attached


def get_metrics_endpoint() -> str | None:
    """Where the server that `init` started serves Prometheus metrics (host:port); None if it does not, or was not
    started by `init`.
    """
    return None if _attached is None else _attached.job.get("metrics")


def _attach(conf: Any) -> Attached:
    block = dict(_part(_part(conf, "backend"), BLOCK))
    named = block.pop("address", None) or os.environ.get("DATAPLANE_SERVER")
    job = _job_address.find()
    if job is not None and named in (None, "", job["address"]):  # also its polling mode
        return Attached(_connected(job), job)
    server = None if named else _started(block, _part(conf, "metrics"))
    mine: dict[str, Any] = {
        "address": named if server is None else server.address,
        "host": None if server is None else socket.gethostname(),
        "metrics": None if server is None else server.http,
        "sampler": sampler_name(_part(conf, "controller").get("sampler")),
        "polling": bool(_part(conf, "controller").get("polling_mode")),
        "owner": uuid.uuid4().hex,
    }
    published, keeper = _job_address.publish(mine)
    if published != mine:
        keeper = None  # it is another process's
        if server is not None:  # both found no server, and the other one was first
            server.stop()
            return Attached(_connected(published), published)
    return Attached(_connected(mine), mine, _with_address(conf, mine["address"]), server, keeper)


def _started(flags: Mapping[str, Any], metrics: Mapping[str, Any]) -> ServerProcess:
    http = {"http": f"127.0.0.1:{metrics.get('port', 0)}"} if metrics.get("enabled") else {}
    try:
        return ServerProcess({**http, **flags})
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"no server is named, and none can be started: {error}. Correct that, or {_HOW}") from error


def _connected(job: Mapping[str, Any]) -> Rows:
    host = job["host"]
    if host not in (None, socket.gethostname()):
        raise RuntimeError(f"the job's server serves the host {host} only, and this is another one: {_HOW}")
    rows = Rows(connect(job["address"]))
    log_event(logging.INFO, "transfer_queue_is_rl_dataplane", address=job["address"])
    if (other := _other_transfer_queue()) is not None:
        log_event(logging.WARNING, "transfer_queue_is_installed_too", version=other)
    return rows


def _other_transfer_queue() -> str | None:
    """The version of TransferQueue itself, if that is installed: what imports `transfer_queue` does not get this."""
    for found in importlib.metadata.distributions(name="TransferQueue"):
        if not found.version.endswith("+rldataplane"):
            return found.version
    return None


def _part(conf: Any, name: str) -> Mapping[str, Any]:
    """A part of a configuration; empty if it is missing. Raises TypeError for what is no mapping."""
    found: Mapping[str, Any] | None = conf.get(name)
    if found is not None and not hasattr(found, "get"):
        raise TypeError(f"init: {name!r} must be a mapping, got {found!r}")
    return {} if found is None else found


def _with_address(conf: Any, address: str) -> Any:
    """The configuration, of its own type, with an address."""
    backend = _part(conf, "backend")
    named = {**conf, "backend": {**backend, BLOCK: {**_part(backend, BLOCK), "address": address}}}
    return type(conf)(named)
