"""The calls of NeMo-RL's asynchronous loop: the adapter is pickled into actors, whose threads fill slots; the trainer
reads them from an event loop. Its partition is never registered.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import cloudpickle
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tests.forked import FORKS, forking
from tests.waiting import soon

from dataplane_client.client import DataPlaneClient
from dataplane_nemo_rl import DataPlaneAdapter

SLOTS, SAMPLES = 4, 3


def payload(slot: int, version: int) -> tuple[list[str], TensorDict, list[dict[str, int]]]:
    """The rows of a prompt group."""
    ids = [f"{slot}-{sample}" for sample in range(SAMPLES)]
    tokens = [torch.arange(2 + slot + sample) for sample in range(SAMPLES)]
    fields = {
        "input_ids": torch.nested.nested_tensor(tokens, layout=torch.jagged),
        "input_lengths": torch.tensor([len(row) for row in tokens]),
        "message": NonTensorStack(*({"slot": slot, "version": version} for _ in ids)),
    }
    tags = [{"slot": slot, "weight_version": version, "input_lengths": len(row)} for row in tokens]
    return ids, TensorDict(fields, batch_size=[SAMPLES]), tags


def fill(adapter: DataPlaneAdapter, slot: int, version: int, fails: bool = False) -> int:
    """The life of a slot: reserved in this process, then its rows are put, then it is ready. If that fails, its rows
    are cleared. A slot that is restored is put again.
    """
    ids, fields, tags = payload(slot, version)
    try:
        meta = adapter.put_samples(ids, "rollouts", fields, tags)
        if fails:
            raise RuntimeError("the environment is gone")
    except RuntimeError:
        adapter.clear_samples(ids, "rollouts")
        return -1
    assert meta.tags == tags
    return slot


def act(pickled: bytes, pipe: Connection) -> None:
    """An actor, which gets the adapter twice."""
    first, second = (pickle.loads(pickled) for _ in range(2))  # noqa: S301  # of this test
    assert first._opened is None
    with ThreadPoolExecutor(SLOTS) as threads:
        pipe.send(list(threads.map(fill, [first, second] * 2, range(SLOTS), [1] * SLOTS, [False, False, True, False])))
    assert first._client._session is second._client._session
    pipe.recv()
    pipe.send(fill(second, 2, version=2))
    first.close()
    second.close()


async def trained(adapter: DataPlaneAdapter, slots: list[int]) -> list[int]:
    """What the trainer reads of slots, one task for each: their tokens."""

    async def tokens(slot: int) -> int:
        ids, _, _ = payload(slot, 0)
        data = await called(adapter.get_samples, ids, "rollouts", ["input_ids", "input_lengths", "message"])
        assert [message["slot"] for message in data.get("message").tolist()] == [slot] * SAMPLES
        assert [len(row) for row in data["input_ids"].unbind()] == data["input_lengths"].tolist()
        return int(data["input_lengths"].sum())

    return await asyncio.gather(*map(tokens, slots))


async def called(verb: Callable[..., object], *args: object) -> TensorDict:
    """A verb as the loop calls it: a coroutine is awaited."""
    result = verb(*args)
    assert inspect.iscoroutine(result)
    return await result  # type: ignore[no-any-return]


@FORKS
def test_actors_fill_slots_and_the_trainer_reads_and_clears_them(
    new_adapter: Callable[..., DataPlaneAdapter], client: DataPlaneClient
) -> None:
    blocking, looping = new_adapter(), new_adapter(coroutines=True)
    pipe, theirs = forking().Pipe()
    actor = forking().Process(target=act, args=(cloudpickle.dumps(blocking), theirs))
    actor.start()
    assert pipe.recv() == [0, 1, -1, 3]
    assert blocking.list_sample_ids("rollouts") == sorted(
        sample_id for slot in (0, 1, 3) for sample_id in payload(slot, 1)[0]
    )
    assert asyncio.run(trained(looping, [0, 1, 3])) == [9, 12, 18]
    pipe.send("restore")
    assert pipe.recv() == 2
    actor.join(60)
    assert actor.exitcode == 0
    assert asyncio.run(trained(looping, [2])) == [15]  # of another event loop
    described = client.partition("rollouts")
    assert (described.rows, described.tasks, described.open) == (SLOTS * SAMPLES, (), True)
    page = client.list_samples("rollouts", where="slot == 2").meta
    assert page.sequence_lengths == [4, 5, 6]
    assert [tags["weight_version"] for tags in page.tags or []] == [2] * SAMPLES
    with pytest.raises(KeyError, match="has no task 'train'"):
        blocking.claim_meta("rollouts", "train", ["input_ids"], 1)
    asyncio.run(cleared(looping))
    assert blocking.list_sample_ids("rollouts") == []


async def cleared(adapter: DataPlaneAdapter) -> None:
    await asyncio.gather(*(called(adapter.clear_samples, payload(slot, 0)[0], "rollouts") for slot in range(SLOTS)))


async def test_every_verb_but_close_is_a_coroutine(new_adapter: Callable[..., DataPlaneAdapter]) -> None:
    adapter = new_adapter(coroutines=True)
    calls = {
        "register_partition": ("p", ["x"], 1, ["t"]),
        "put_samples": (["a"], "p", TensorDict({"x": torch.ones(1)}, batch_size=[1])),
        "claim_meta": ("p", "t", ["x"], 1),
        "check_consumption_status": ("p", ["t"]),
        "get_samples": (["a"], "p", ["x"]),
        "list_sample_ids": ("p",),
        "clear_samples": (None, "p"),
    }
    answers = {verb: await called(getattr(adapter, verb), *arguments) for verb, arguments in calls.items()}
    assert (answers["check_consumption_status"], answers["list_sample_ids"]) == (True, ["a"])
    with pytest.raises(KeyError):
        await called(adapter.get_data, answers["claim_meta"])
    with pytest.raises(ValueError, match="data-dir"):
        await called(adapter.save_checkpoint, "/nowhere")
    with pytest.raises(RuntimeError, match="load the checkpoint first"):
        await called(adapter.load_checkpoint, "/nowhere")
    assert adapter.close() is None  # type: ignore[func-returns-value]


async def test_a_cancelled_claim_takes_no_rows_that_come_later(
    new_adapter: Callable[..., DataPlaneAdapter], client: DataPlaneClient
) -> None:
    adapter = new_adapter(coroutines=True)
    client.register_partition("p", ["x"], 0, ["t"])
    claiming = asyncio.ensure_future(called(adapter.claim_meta, "p", "t", ["x"], 2, None, True, 200.0))
    await soon(lambda: client.partition("p").task("t").waiting_claims == 1)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    client.put_samples(["a", "b"], "p", {"x": [1, 2]})
    assert client.claim("p", "t", ["x"], 2, timeout_s=200.0).meta.sample_ids == ["a", "b"]


def test_a_pickled_adapter_keeps_its_settings_and_that_it_was_used(
    new_adapter: Callable[..., DataPlaneAdapter], tmp_path: object
) -> None:
    adapter = new_adapter(coroutines=True, tokens_field="tokens")
    for by in (pickle, cloudpickle):
        again: DataPlaneAdapter = pickle.loads(by.dumps(adapter))  # noqa: S301  # made just now
        assert vars(again) == {**vars(adapter), "_opened": None}
    asyncio.run(called(adapter.clear_samples, None, "p"))
    with pytest.raises(RuntimeError, match="load the checkpoint first"):
        asyncio.run(called(pickle.loads(cloudpickle.dumps(adapter)).load_checkpoint, tmp_path))  # noqa: S301  # likewise
