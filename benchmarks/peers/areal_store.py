"""A re-creation of AReaL's tensor store over HTTP, not the package itself.

Follows `areal/infra/rpc` of areal-project/AReaL: `rtensor.py` at commit a7758a23, `guard/data_blueprint.py` at
ddd24296, `serialization.py` at 00ff7fcd. It has the same libraries, messages and settings, and is written anew.

`store` keeps a tensor in the process under a new id. A Flask application on werkzeug's threaded server answers `POST
/data/batch` with the tensors of up to 32 ids as JSON, values in base64. `fetch` asks for them with aiohttp, one request
after the other, and copies each tensor.

Runs inside the environment of the re-created peers, as a worker (see `workers`): one that stores, and one that fetches.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
import flask  # type: ignore[import-not-found]
import numpy as np
import orjson  # type: ignore[import-not-found]
import torch
from pydantic import BaseModel  # type: ignore[import-not-found]
from werkzeug.serving import make_server  # type: ignore[import-not-found]

from batches import Spec, build
from timing import timed
from workload import digest

_SHARDS_A_REQUEST = 32
_BUFFER_BYTES = 10 << 20
_REQUEST_S = 100.0
_TRAJECTORY_ROWS = 8


class SerializedTensor(BaseModel):  # type: ignore[misc]
    """A tensor in a message."""

    type: Literal["tensor"] = "tensor"
    data: str
    shape: list[int]
    dtype: str


class ShardIds(BaseModel):  # type: ignore[misc]
    """What a request names."""

    shard_ids: list[str]


def application(tensors: dict[str, torch.Tensor]) -> flask.Flask:
    """Serves the tensors of this process."""
    app = flask.Flask(__name__)

    def retrieve() -> flask.Response:
        wanted = ShardIds(**flask.request.get_json())
        found = [_serialize(tensors[shard_id]) for shard_id in wanted.shard_ids]
        return flask.Response(orjson.dumps(found), mimetype="application/octet-stream")

    def clear() -> flask.Response:
        wanted = ShardIds(**flask.request.get_json())
        cleared = [tensors.pop(shard_id, None) for shard_id in wanted.shard_ids]
        return flask.jsonify({"status": "ok", "cleared_count": len(cleared)})

    app.add_url_rule("/data/batch", view_func=retrieve, methods=["POST"])
    app.add_url_rule("/data/clear", view_func=clear, methods=["DELETE"])
    return app


def _serialize(tensor: torch.Tensor) -> dict[str, Any]:
    data = base64.b64encode(tensor.numpy().tobytes()).decode()
    message = SerializedTensor(data=data, shape=list(tensor.shape), dtype=str(tensor.dtype))
    return dict(message.model_dump())


def _deserialize(message: Mapping[str, Any]) -> torch.Tensor:
    serialized = SerializedTensor(**message)
    dtype = getattr(torch, serialized.dtype.removeprefix("torch."))
    values = np.frombuffer(base64.b64decode(serialized.data.encode()), torch.empty(0, dtype=dtype).numpy().dtype)
    return torch.from_numpy(values.copy()).reshape(serialized.shape)


async def fetch(address: str, shard_ids: list[str]) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    async with _session() as session:
        for start in range(0, len(shard_ids), _SHARDS_A_REQUEST):
            wanted = {"shard_ids": shard_ids[start : start + _SHARDS_A_REQUEST]}
            async with session.post(f"http://{address}/data/batch", json=wanted) as response:
                response.raise_for_status()
                tensors += map(_deserialize, orjson.loads(await response.read()))
    return tensors


async def delete(address: str, shard_ids: list[str]) -> None:
    url = f"http://{address}/data/clear"
    async with _session() as session, session.delete(url, json={"shard_ids": shard_ids}) as response:
        await response.json()


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, use_dns_cache=False, force_close=True)
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    return aiohttp.ClientSession(timeout=timeout, read_bufsize=_BUFFER_BYTES, connector=connector)


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._stored: dict[str, torch.Tensor] = {}
        self._tensors: list[torch.Tensor] = []

    def serve(self, spec: Spec) -> str:
        """Make the trajectories of a batch, and serve this process's store. Returns its address."""
        self._tensors = _trajectories(spec)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server("127.0.0.1", 0, application(self._stored), threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    def store(self) -> tuple[Mapping[str, float], list[str]]:
        """The seconds, and the ids."""
        before = set(self._stored)
        took = timed(put=lambda: self._stored.update({str(uuid.uuid4()): tensor for tensor in self._tensors}))
        return took, [shard_id for shard_id in self._stored if shard_id not in before]

    def fetch(self, address: str, shard_ids: list[str]) -> Mapping[str, float]:
        return timed(read=lambda: self._fetch(address, shard_ids))

    def _fetch(self, address: str, shard_ids: list[str]) -> None:
        self._tensors = asyncio.run(fetch(address, shard_ids))

    def digest(self) -> str:
        """Of the tensors that this process stores, or of the last fetch."""
        return digest({f"{number:06d}": tensor for number, tensor in enumerate(self._tensors)})

    def delete(self, address: str, shard_ids: list[str]) -> None:
        asyncio.run(delete(address, shard_ids))


def _trajectories(spec: Spec) -> list[torch.Tensor]:
    """The fields of each trajectory, one after the other, without padding beyond its longest row."""
    batch = build(spec)
    lengths = batch.columns["input_lengths"]
    tensors = []
    for start in range(0, batch.rows, _TRAJECTORY_ROWS):
        rows = slice(start, start + _TRAJECTORY_ROWS)
        for name, column in batch.columns.items():
            kept = column[rows, : lengths[rows].max()] if name in batch.per_token else column[rows]
            tensors.append(torch.from_numpy(np.ascontiguousarray(kept)))
    return tensors
