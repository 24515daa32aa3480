"""A refused verb shows its caller's frame, and at most two of the client's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dataplane_client
from dataplane_client import aio, kv_first_write, read_columns, write_columns
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError

PACKAGE = str(Path(dataplane_client.__file__).parent)


@pytest.fixture
def way() -> str:
    """What is refused, and how that is told, does not depend on the way."""
    return "grpc"


def frames_of(error: BaseException) -> tuple[list[str], list[str]]:
    """The functions in a traceback: those outside the package, and those in it."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame.name for frame in frames if frame.filename.startswith(PACKAGE)]
    return [frame.name for frame in frames if not frame.filename.startswith(PACKAGE)], inside


REFUSED: dict[str, Callable[..., object]] = {
    "claim": lambda client, meta: client.claim("p", "nope", ["reward"], 1),
    "put_samples, refused here": lambda client, meta: client.put_samples(["a"], "p", {"reward": torch.zeros(2)}),
    "put_samples, refused there": lambda client, meta: client.put_samples(["a"], "p", {"nope": torch.zeros(1)}),
    "get_samples": lambda client, meta: client.get_samples(["z"], "p", ["reward"]),
    "read_columns": lambda client, meta: client.read_columns(meta, ["nope"]),
    "reset": lambda client, meta: client.reset("p", "nope"),
    "timeout_s": lambda client, meta: client.partitions(timeout_s="5"),
    "device": lambda client, meta: client.read_columns(meta, ["reward"], device="bogus"),
    "cuda": lambda client, meta: client.read_columns(meta, ["reward"], device="cuda:7777"),
    "options": lambda client, meta: (aio if "Async" in type(client).__name__ else dataplane_client).connect("a:1", t=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_verb_shows_one_frame_of_ours(filled: DataPlaneClient, name: str) -> None:
    meta = filled.put_samples(["a"], "p", tags=[{}])
    with pytest.raises(DataPlaneError) as caught:
        REFUSED[name](filled, meta)
    outside, inside = frames_of(caught.value)
    assert outside == [outside[0], "<lambda>"]
    assert len(inside) == (2 if name == "options" else 1), inside
    printed = "".join(traceback.format_exception(caught.value))
    assert "The above exception" not in printed
    assert "During handling" not in printed


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_coroutine_shows_one_frame_of_ours(
    filled: DataPlaneClient, async_client: aio.AsyncDataPlaneClient, name: str
) -> None:
    meta = await async_client.put_samples(["a"], "p", tags=[{}])
    refused: Any = REFUSED[name]
    with pytest.raises(DataPlaneError) as caught:
        await refused(async_client, meta)
    inside = frames_of(caught.value)[1]
    assert len(inside) == (2 if name == "options" else 1), inside


def test_a_refusal_by_the_server_begins_with_the_verb_and_shows_one_frame_of_ours(filled: DataPlaneClient) -> None:
    claim, group = filled.claim("p", "train", ["reward"], 1), filled.reserve_group("p", "g", ["g0"])
    wrong = {"nope": [[0.0]]}
    refused: dict[str, Callable[[], object]] = {
        "append_tokens": lambda: filled.append_tokens(["a"], "p", wrong),
        "put_samples": lambda: filled.put_samples(["a"], "p", wrong),
        "claim.write": lambda: claim.write(wrong),
        "claim.commit": lambda: claim.commit(wrong),
        "claim.release": lambda: claim.release(reason="x" * 257),
        "group.put": lambda: group.put(["g0"], wrong),
        "group.commit": group.commit,
    }
    for verb, call in refused.items():
        with pytest.raises(DataPlaneError) as caught:
            call()
        assert str(caught.value).startswith(f"{verb} at {filled.target}: ")
        assert len(frames_of(caught.value)[1]) == 1, verb
    claim.release()
    group.abort()


def test_refused_functions_show_one_frame_of_ours_and_name_the_right_order(filled: DataPlaneClient) -> None:
    meta = filled.put_samples(["a"], "p", tags=[{}])
    wrong: dict[str, Callable[[], object]] = {
        "read_columns(client, meta, select_fields): the client must be of the class DataPlaneClient, got KVBatchMeta": (
            lambda: read_columns(meta, filled, ["reward"])  # type: ignore[arg-type]
        ),
        "write_columns(client, meta, fields): the client must be of the class DataPlaneClient, got KVBatchMeta": (
            lambda: write_columns(meta, filled, {})  # type: ignore[arg-type]
        ),
        "kv_first_write(..., dp_client=): the client must be of the class DataPlaneClient, got str": (
            lambda: kv_first_write({}, sample_ids=[], dp_client="p", partition_id="p")  # type: ignore[arg-type]
        ),
        "read_columns: the meta must be a KVBatchMeta, got list": (
            lambda: filled.read_columns(["reward"], meta)  # type: ignore[arg-type]
        ),
    }
    for message, call in wrong.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == message
        assert len(frames_of(caught.value)[1]) == 1


def test_connect_shows_two_frames_of_ours() -> None:
    with pytest.raises(DataPlaneError) as caught:
        connect("127.0.0.1:1", connect_timeout_s=0.01)
    assert len(frames_of(caught.value)[1]) == 2
