"""Reads that copy nothing: views of the server's memory that stay right whatever becomes of the rows, and
cost what they hold for as long as they live.
"""

from __future__ import annotations

import gc
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.integration.shared_memory.conftest import stalled
from tests.tensors import PLAIN, jagged, some
from tests.waiting import eventually

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.codec import WIRE_DTYPES
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import ServerThread

MIB = 1 << 20
LENGTHS = [3000, 0, 40_000, 1, 57_000]
IDS = list("abcde")
DTYPES = {entry.name: entry.torch_dtype for entry in WIRE_DTYPES}


def meta(*sample_ids: str) -> KVBatchMeta:
    return KVBatchMeta(partition_id="p", task_name=None, sample_ids=list(sample_ids), fields=None)


def read(client: DataPlaneClient, *sample_ids: str, fields: tuple[str, ...] = ("x",)) -> BatchedDataDict[torch.Tensor]:
    return client.read_columns(meta(*(sample_ids or IDS)), fields, layout="jagged")


def bits(value: torch.Tensor) -> npt.NDArray[np.generic]:
    """The bytes of a tensor, sharing its memory."""
    flat = value.values() if value.is_nested else value
    array: npt.NDArray[np.generic] = flat.view(PLAIN[value.dtype.itemsize]).numpy()
    return array


@pytest.fixture
def sent(client: DataPlaneClient) -> torch.Tensor:
    """The entries of x in rows a to e."""
    values = some(torch.int32, sum(LENGTHS))
    client.put_samples(IDS, "p", {"x": jagged(values, LENGTHS)})
    return values


def used(client: DataPlaneClient) -> int:
    return client.server_status().memory_used_bytes


def fill_the_arena(client: DataPlaneClient) -> None:
    """Overwrite all of the memory that nobody holds."""
    free = client.server_status().memory_budget_bytes - used(client)
    noise = torch.full((free // MIB, MIB), 0xAA, dtype=torch.uint8)
    client.put_samples([f"noise{row}" for row in range(len(noise))], "p", {"y": noise})
    client.clear_samples([f"noise{row}" for row in range(len(noise))], "p")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_values_of_every_element_type_equal_those_over_grpc(
    client: DataPlaneClient, grpc_client: DataPlaneClient, dtype: torch.dtype
) -> None:
    fields = {"x": jagged(some(dtype, 20_000, 3), [0, 7000, 13_000]), "y": some(dtype, 3, 7001)}
    client.put_samples(["a", "b", "c"], "p", fields)
    for ids in (["a", "b", "c"], ["c", "a"], ["b"]):
        ours, theirs = (read(reader, *ids, fields=("y", "x")) for reader in (client, grpc_client))
        for name in ("x", "y"):
            assert (ours[name].dtype, ours[name].is_nested) == (theirs[name].dtype, theirs[name].is_nested)
            assert bits(ours[name]).tobytes() == bits(theirs[name]).tobytes()
            assert bits(ours[name]).shape == bits(theirs[name]).shape
        assert torch.equal(ours["x"].offsets(), theirs["x"].offsets())


def test_a_view_shows_the_memory_of_the_server(
    client: DataPlaneClient, server: ServerThread, sent: torch.Tensor
) -> None:
    batch = read(client)
    arena = np.frombuffer(server.server._arena._map, np.uint8)
    at = arena.tobytes().find(sent[:64].numpy().tobytes())
    arena[at] ^= 1  # nobody may: here it shows that nothing was copied
    assert int(bits(batch["x"])[0]) == int(sent[0]) ^ 1
    arena[at] ^= 1
    assert bits(batch["x"]).tobytes() == sent.numpy().tobytes()


def test_writing_to_a_view_changes_neither_the_memory_nor_another_read(
    client: DataPlaneClient, grpc_client: DataPlaneClient, sent: torch.Tensor
) -> None:
    first, second = read(client), read(client)
    bits(first["x"])[...] = 7
    third = read(client)
    for other in (second, third, read(grpc_client)):
        assert bits(other["x"]).tobytes() == sent.numpy().tobytes()
    assert (bits(first["x"]) == 7).all()


def test_rows_that_do_not_adjoin_are_copied_and_right(client: DataPlaneClient, sent: torch.Tensor) -> None:
    backwards = read(client, *reversed(IDS))
    rows = sent.split(LENGTHS)
    assert bits(backwards["x"]).tobytes() == torch.cat(rows[::-1]).numpy().tobytes()
    client.clear_samples(None, "p")
    assert used(client) == 0  # a copy holds nothing


def test_bytes_stay_in_use_until_the_last_view_dies(client: DataPlaneClient, sent: torch.Tensor) -> None:
    batch, size = read(client), sent.numpy().nbytes
    client.clear_samples(None, "p")
    assert used(client) == size
    slice_of_it = bits(batch["x"])[17:18]
    del batch
    gc.collect()
    client.server_status()
    assert used(client) == size
    assert slice_of_it.tobytes() == sent.numpy()[17:18].tobytes()
    del slice_of_it
    eventually(lambda: used(client) == 0)


def test_a_view_stays_right_when_its_rows_are_put_anew(client: DataPlaneClient, sent: torch.Tensor) -> None:
    batch = read(client)
    client.put_samples(IDS, "p", {"x": jagged(torch.zeros(sum(LENGTHS), dtype=torch.int32), LENGTHS)})
    fill_the_arena(client)
    assert bits(batch["x"]).tobytes() == sent.numpy().tobytes()
    assert not bits(read(client)["x"]).any()


def test_a_view_stays_right_after_its_client_closed(
    client: DataPlaneClient, grpc_client: DataPlaneClient, listen: str, sent: torch.Tensor
) -> None:
    with connect(listen, transport="shm") as short_lived:
        batch = read(short_lived)
    del short_lived
    grpc_client.clear_samples(None, "p")
    fill_the_arena(grpc_client)
    assert bits(batch["x"]).tobytes() == sent.numpy().tobytes()
    del batch
    eventually(lambda: used(grpc_client) == 0)


def test_a_view_stays_right_after_its_server_stopped(
    client: DataPlaneClient, server: ServerThread, sent: torch.Tensor
) -> None:
    batch = read(client)
    server.stop()
    bits(batch["x"])[0] += 1
    assert bits(batch["x"])[1:].tobytes() == sent.numpy()[1:].tobytes()
    client.close()
    del client
    assert bits(batch["x"])[1:].tobytes() == sent.numpy()[1:].tobytes()


def test_views_that_die_while_the_server_is_busy_are_let_go_of_with_the_calls_that_follow(
    client: DataPlaneClient,
    grpc_client: DataPlaneClient,
    server: ServerThread,
    sent: torch.Tensor,
) -> None:
    views = [read(client) for _ in range(1000)]
    client.clear_samples(None, "p")
    with stalled(server):
        views.clear()
        gc.collect()

    def nothing_is_held_after_another_call() -> bool:
        client.put_samples(["f"], "p", {"y": torch.zeros(1, 0, dtype=torch.uint8)})
        return used(grpc_client) == 0

    eventually(nothing_is_held_after_another_call)


def test_views_that_die_on_many_threads_at_once_are_all_let_go_of(client: DataPlaneClient, sent: torch.Tensor) -> None:
    def hold_and_drop(_: int) -> None:
        for _ in range(20):
            batch = read(client)
            batch["itself"] = batch  # only a collection, on whatever thread, frees this one
            gc.collect(0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold_and_drop, range(8)))
    client.clear_samples(None, "p")
    gc.collect()
    eventually(lambda: used(client) == 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_ends_takes_nothing_from_its_parent(client: DataPlaneClient, sent: torch.Tensor) -> None:
    batch = read(client)
    child = os.fork()
    if child == 0:
        right = bits(batch["x"]).tobytes() == sent.numpy().tobytes()
        del batch
        gc.collect()
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.clear_samples(None, "p")
    assert used(client) == sent.numpy().nbytes
    fill_the_arena(client)
    assert bits(batch["x"]).tobytes() == sent.numpy().tobytes()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_view_stays_right_in_a_forked_child_when_its_parent_lets_go_of_it(
    client: DataPlaneClient, sent: torch.Tensor
) -> None:
    batch = read(client)
    wait_for, go_on = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_on)
        os.read(wait_for, 1)
        os._exit(0 if bits(batch["x"]).tobytes() == sent.numpy().tobytes() else 1)
    os.close(wait_for)
    try:
        del batch
        gc.collect()
        client.clear_samples(None, "p")
        eventually(lambda: used(client) == 0)
        fill_the_arena(client)
    finally:
        os.close(go_on)
        ended = os.waitpid(child, 0)[1]
    assert ended == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_copy_viewed_values_once_however_far_apart_they_lie(client: DataPlaneClient) -> None:
    client.register_partition("between", ["x"], 0, ["train"])
    client.put_samples(IDS, "p", {"x": some(torch.int32, 5, 400_000)})
    client.put_samples(["b"], "between", {"x": torch.ones(1, 6 * MIB, dtype=torch.int32)})
    client.put_samples(IDS, "p", {"y": some(torch.int32, 5, 400_000)})
    batch = read(client, fields=("x", "y"))
    sent = [bits(batch[name]).tobytes() for name in ("x", "y")]
    for partition in ("p", "between"):
        client.drop_partition(partition)
    assert used(client) == 16_000_000  # they are views
    wait_for, go_on = os.pipe()
    before, children = memory_of_views(os.getpid()), list[int]()
    try:
        for _ in range(3):
            children.append(os.fork())
            if children[-1] == 0:
                os.close(go_on)
                os.read(wait_for, 1)
                os._exit(0 if [bits(batch[name]).tobytes() for name in ("x", "y")] == sent else 1)
        assert 0 < memory_of_views(os.getpid(), *children) - before < 32_000_000
        del batch
        gc.collect()
        eventually(lambda: used(client) == 0)
        client.register_partition("p", ["y"], 0, ["train"])
        fill_the_arena(client)
    finally:
        os.close(wait_for)
        os.close(go_on)
        ended = [os.waitpid(child, 0)[1] for child in children]
    assert ended == [0, 0, 0]


def memory_of_views(*processes: int) -> int:
    """Bytes of private mappings of an arena; what these processes share counts once."""
    told = "".join(Path(f"/proc/{process}/smaps").read_text() for process in processes)
    return 1024 * sum(map(int, re.findall(r" rw-p .*memfd:.*\n(?:(?!Pss:).*\n)*Pss: +(\d+) kB", told)))


def test_a_client_that_keeps_many_batches_has_descriptors_left(client: DataPlaneClient, sent: torch.Tensor) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    batches = [read(client) for _ in range(600)]
    assert len(list(descriptors.iterdir())) - before < 550
    assert all(bits(batch["x"]).tobytes() == sent.numpy().tobytes() for batch in batches)
