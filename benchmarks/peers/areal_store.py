"""A re-creation of AReaL's tensor store over HTTP, not the package itself.

Follows `areal/infra/rpc` of areal-project/AReaL: `rtensor.py` at commit a7758a23, `guard/data_blueprint.py` at
ddd24296, `serialization.py` at 00ff7fcd. It has the same libraries, messages and settings, and is written anew.

`store` keeps a tensor in the process under a new id. A Flask application on werkzeug's threaded server answers `POST
/data/batch` with the tensors of up to 32 ids as JSON, values in base64. `fetch` asks for them with aiohttp, one request
after the other, and copies each tensor.

Runs inside the environment of the re-created peers, as a worker (see `serving`): one that stores, and one that fetches.
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
from serving import serve
from timing import seconds, undisturbed
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


class Store:
    """The tensors of this process."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def store(self, tensor: torch.Tensor) -> str:
        shard_id = str(uuid.uuid4())
        with self._lock:
            self._tensors[shard_id] = tensor
        return shard_id

    def find(self, shard_id: str) -> torch.Tensor:
        with self._lock:
            return self._tensors[shard_id]

    def remove(self, shard_id: str) -> bool:
        with self._lock:
            return self._tensors.pop(shard_id, None) is not None


def application(store: Store) -> flask.Flask:
    app = flask.Flask(__name__)

    def retrieve() -> flask.Response:
        wanted = ShardIds(**flask.request.get_json())
        tensors = [_serialize(store.find(shard_id)) for shard_id in wanted.shard_ids]
        return flask.Response(orjson.dumps(tensors), mimetype="application/octet-stream")

    def clear() -> flask.Response:
        wanted = ShardIds(**flask.request.get_json())
        return flask.jsonify({"status": "ok", "cleared_count": sum(map(store.remove, wanted.shard_ids))})

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
        self._store = Store()
        self._tensors: list[torch.Tensor] = []

    def serve(self, spec: dict[str, Any]) -> Mapping[str, Any]:
        """Make the trajectories of a batch, and serve this process's store."""
        self._tensors = _trajectories(Spec(**spec))
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server("127.0.0.1", 0, application(self._store), threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return {"address": f"127.0.0.1:{server.server_port}"}

    def store(self) -> Mapping[str, Any]:
        with undisturbed():
            took, shard_ids = seconds(lambda: [self._store.store(tensor) for tensor in self._tensors])
        return {"put": took, "shard_ids": shard_ids}

    def fetch(self, address: str, shard_ids: list[str]) -> Mapping[str, Any]:
        with undisturbed():
            took, self._tensors = seconds(lambda: asyncio.run(fetch(address, shard_ids)))
        return {"read": took}

    def digest(self) -> Mapping[str, Any]:
        """Of the tensors that this process stores, or of the last fetch."""
        return {"digest": digest({f"{number:06d}": tensor for number, tensor in enumerate(self._tensors)})}

    def delete(self, address: str, shard_ids: list[str]) -> Mapping[str, Any]:
        asyncio.run(delete(address, shard_ids))
        return {}


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


def main() -> None:
    calls = Calls()
    names = ("serve", "store", "fetch", "digest", "delete")
    serve({name: getattr(calls, name) for name in names})


if __name__ == "__main__":
    main()
