"""Four ranks, two replicas of two, that run every case against a real server; see test_between_ranks.py."""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed
from prometheus_client.parser import text_string_to_metric_families
from tests.tensors import objects
from tests.trainer_adapter.data_plane.exchanged_values import equal, mapping_of
from torch.distributed.device_mesh import init_device_mesh

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._exchange import broadcast_values, gather_values
from trainer_adapter.automodel.config import DistributedContext
from trainer_adapter.data_plane import ReplicaDataPlane, ReplicaGroup, replica_group
from trainer_adapter.pad_target import with_pad_target

CPU = torch.device("cpu")
PAD = 9
LENGTHS = [3, 1, 2, 3, 7, 1, 6, 2]
IDS = [f"s{row}" for row in range(len(LENGTHS))]
ORDERS = [[2, 0, 3, 1], [5, 7, 4, 6]]
"""The rows of each replica, not as they were put."""
FIELDS = ["input_ids", "token_mask", "sample_mask", "notes"]
WORLD = 4


def tokens(row: int) -> list[int]:
    return [100 * (row + 1) + token for token in range(LENGTHS[row])]


def first_batch() -> dict[str, Any]:
    """What is put of all rows."""
    ids, mask = torch.full((8, 7), PAD), torch.zeros(8, 7, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        ids[row, :length], mask[row, :length] = torch.tensor(tokens(row)), True
    notes = objects(*({"row": row, "tools": ["x"] * row} for row in range(8)))
    given = {"sample_mask": torch.ones(8), "input_lengths": torch.tensor(LENGTHS), "notes": notes}
    return {"input_ids": ids, "token_mask": mask, **given}


def meta_of(partition: str, rows: list[int], known: bool = True) -> KVBatchMeta:
    lengths = [LENGTHS[row] for row in rows] if known else None
    return KVBatchMeta(partition, "train", [IDS[row] for row in rows], list(FIELDS), lengths)


def counters(http_address: str | None) -> dict[tuple[str, str], int]:
    """The server's, by name and partition."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=200) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples if "partition" in sample.labels]
    return {(sample.name, sample.labels["partition"]): int(sample.value) for sample in samples}


@dataclass
class Rank:
    """One rank: its replica, and a client where it leads."""

    rank: int
    replica: ReplicaGroup
    dp_group: Any
    client: DataPlaneClient | None
    address: str

    @property
    def dp_rank(self) -> int:
        return self.rank // 2

    def side(self, client: DataPlaneClient | None = None) -> ReplicaDataPlane:
        groups: dict[str, Any] = {"replica": self.replica, "dp_group": self.dp_group}
        return ReplicaDataPlane(client or self.client, **groups, device=CPU, pad_token_id=PAD, pad_multiple=4)

    def fetch(self, partition: str, *fields: str, known: bool = True, **how: Any) -> BatchedDataDict[Any]:
        """The rows of this replica."""
        return self.side().fetch(meta_of(partition, ORDERS[self.dp_rank], known), fields or None, **how)

    def claim(self, partition: str, size: int = 8, **options: Any) -> Any:
        how: dict[str, Any] = {"step": 0, "dp_rank": self.dp_rank, "dp_world": 2, "timeout_s": 100, **options}
        return self.side().claim_shard(partition, "train", ["input_ids"], size, **how)


def shown(batch: Any) -> dict[str, Any]:
    """A batch as JSON."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}


def raised(call: Callable[[], Any]) -> str:
    """What a call raises."""
    try:
        return f"nothing, but {call()}"
    except Exception as error:  # noqa: BLE001  # whatever it is, the test judges it
        return f"{type(error).__name__}: {error}"


# --- fetch ---


def fetched(here: Rank, name: str) -> Any:
    return shown(here.fetch(name))


def minted(here: Rank, name: str) -> Any:
    whole = with_pad_target(meta_of(name, list(range(8))), pad_to_multiple=6)
    return shown(here.side().fetch(whole.subset(ORDERS[here.dp_rank]), fetch_policy="leader_broadcast"))


def unknown_lengths(here: Rank, name: str) -> Any:
    return shown(here.fetch(name, known=False))


def independent(here: Rank, name: str) -> Any:
    with connect(here.address) as client:
        return shown(here.side(client).fetch(meta_of(name, ORDERS[here.dp_rank]), fetch_policy="independent"))


def jagged(here: Rank, name: str) -> Any:
    batch = here.fetch(name, layout="jagged")
    together = batch["input_ids"] * batch["token_mask"]  # the same offsets
    return {"rows": [row.tolist() for row in together.unbind()], "notes": batch["notes"].tolist()}


def preprocessed(here: Rank, name: str) -> Any:
    calls = []

    def doubled(batch: BatchedDataDict[Any]) -> BatchedDataDict[Any]:
        calls.append(here.rank)
        return BatchedDataDict({**batch, "doubled": batch["input_ids"] * 2})

    return {**shown(here.fetch(name, preprocess=doubled)), "calls": calls}


PLAN = {"micro_batch_indices": [[[0, 1], [1, 4]]], "micro_batch_lengths": [[4, 8]], "elem_counts_per_gb": [4]}


def planned(here: Rank, name: str) -> Any:
    batch = here.side().fetch(replace(meta_of(name, ORDERS[here.dp_rank]), extra_info=PLAN))
    return {key: getattr(batch, key) for key in PLAN}


def plan_of_other_rows(here: Rank, name: str) -> Any:
    meta = replace(meta_of(name, ORDERS[here.dp_rank][:3]), extra_info={**PLAN, "elem_counts_per_gb": None})
    return raised(lambda: here.side().fetch(meta))


def rows_of(here: Rank, name: str, lacks_one: bool, known: bool = True) -> KVBatchMeta:
    """This replica's rows, of which one may not be there."""
    rows = meta_of(name, ORDERS[here.dp_rank], known)
    return replace(rows, sample_ids=["s5", "gone", "s4", "s6"]) if lacks_one else rows


def unreadable(here: Rank, name: str) -> Any:
    return raised(lambda: here.side().fetch(rows_of(here, name, here.dp_rank == 1)))


def unreadable_of_unknown_lengths(here: Rank, name: str) -> Any:
    """The others find out, because they have to agree on a width."""
    return raised(lambda: here.side().fetch(rows_of(here, name, here.dp_rank == 1, known=False)))


def without_rows(here: Rank, name: str) -> Any:
    """One replica's shard has none, as where there are fewer groups than replicas; the others find out as well."""
    rows = meta_of(name, ORDERS[here.dp_rank] if here.dp_rank == 0 else [])
    return raised(lambda: here.side().fetch(rows))


def unreadable_by_one(here: Rank, name: str) -> Any:
    rows = rows_of(here, name, here.rank == 3)
    with connect(here.address) as client:
        return raised(lambda: here.side(client).fetch(rows, fetch_policy="independent"))


def preprocess_fails(here: Rank, name: str) -> Any:
    def fails(batch: BatchedDataDict[Any]) -> BatchedDataDict[Any]:
        raise KeyError("no such prompt")

    return [raised(partial(here.fetch, name, preprocess=step)) for step in (fails, lambda batch: batch.slice(0, 3))]


# --- write_back ---


def wait_for_results(here: Rank, rows: list[int]) -> dict[str, torch.Tensor]:
    """Padded, different on every rank; the token's position behind the point."""
    values = torch.tensor(rows)[:, None] + torch.arange(8) / 10 + 1000 * here.rank
    return {"logprobs": values.requires_grad_(), "reward": torch.tensor(rows) + 0.5}


def written(here: Rank, name: str) -> Any:
    rows = ORDERS[here.dp_rank]
    result = wait_for_results(here, rows) if here.replica.is_leader else None
    here.side().write_back(meta_of(name, rows), result, result_key="logprobs", field="prev_logprobs")
    here.side().write_back(meta_of(name, rows, known=False), result, result_key="reward", field="reward")
    return "written"


def unwritable(here: Rank, name: str) -> Any:
    """The leader's result lacks the key."""
    rows = ORDERS[here.dp_rank]
    write = partial(here.side().write_back, meta_of(name, rows), wait_for_results(here, rows))
    return raised(partial(write, result_key="scores", field="prev_logprobs"))


# --- claims ---


def claimed(here: Rank, name: str) -> Any:
    with here.claim(name) as claim:
        ids = claim.meta.sample_ids
        rows = [IDS.index(sample_id) for sample_id in ids]
        results = wait_for_results(here, rows)
        notes = objects(*({"by": here.rank} for _ in rows))
        count = claim.commit({"prev_logprobs": results["logprobs"].detach(), "notes": notes})
        again = raised(claim.commit)
    return {"ids": ids, "known": claim.meta.sequence_lengths, "rows": count, "state": claim.state, "again": again}


def left_clean(here: Rank, name: str) -> Any:
    with here.claim(name) as claim:
        pass
    return [claim.state, claim.committed, here.claim(name).committed]


def one_rank_fails(here: Rank, name: str) -> Any:
    """Once while the others leave, once while they commit; then the step's rows are there still."""
    seen = []
    for commits in (False, True):
        claim = here.claim(name)

        def work(claim: Any = claim, commits: bool = commits) -> None:
            with claim:
                if here.rank in (1, 2):
                    raise ZeroDivisionError("a bad row")
                if commits:
                    claim.commit()

        seen.append([raised(work), claim.state])
    return [*seen, here.claim(name).meta.sample_ids]


def ranks_disagree(here: Rank, name: str) -> Any:
    claim = here.claim(name)
    refusal = raised(claim.release if here.rank % 2 else claim.commit)
    return [refusal.replace(claim.claim_id, "ID"), claim.state, claim.release(reason="undecided"), claim.state]


def fenced(here: Rank, name: str) -> Any:
    """The rows are given to others behind the claim's back."""
    claim = here.claim(name)
    torch.distributed.barrier()
    if here.rank == 0 and here.client is not None:
        here.client.reset(name, "train")
    torch.distributed.barrier()

    def work() -> None:
        with claim:
            claim.commit({"prev_logprobs": torch.zeros(claim.meta.size, 8)})

    return [raised(work).partition(":")[0], claim.state]


def cleared(here: Rank, name: str) -> Any:
    """A commit that could not write its columns leaves the claim open; leaving releases it."""
    claim = here.claim(name)
    if here.client is not None:
        here.client.clear_samples(claim.meta.sample_ids[:1], name)
    seen = []

    def work() -> None:
        with claim:
            seen.append(raised(lambda: claim.commit({"sample_mask": torch.zeros(claim.meta.size)})))
            raise ZeroDivisionError

    return [raised(work), seen[0].partition(":")[0], claim.state]


# --- exchange ---


def exchanged(here: Rank, _name: str) -> Any:
    """How many mappings came to the other rank of the replica as they were, in either direction."""
    group, seen = here.replica.group, 0
    assert group is not None
    for seed in range(60):
        source, values = here.rank // 2 * 2 + seed % 2, mapping_of(random.Random(seed))
        got = broadcast_values(partial(dict, values), source=source, group=group, device=CPU)
        seen += equal(got, values)
    return seen


def gathered(here: Rank, _name: str) -> Any:
    group, seen = torch.distributed.group.WORLD, 0
    assert group is not None
    for seed in range(15):
        values = [mapping_of(random.Random(1000 * rank + seed)) for rank in range(WORLD)]
        got = gather_values(values[here.rank], group=group, device=CPU)
        seen += all(equal(mine, theirs) for mine, theirs in zip(got, values, strict=True))
    return seen


def refused(here: Rank, _name: str) -> Any:
    group = here.replica.group
    assert group is not None
    values = {"fine": 1, "odd": {"deep": [{1, 2}]}}
    own = values if here.rank != 1 else {"fine": 2}

    def broadcast(values: Any) -> str:
        return raised(lambda: broadcast_values(lambda: values, source=here.replica.leader, group=group, device=CPU))

    odd = [broadcast({"fine": 1, "odd": value}) for value, _ in unsupported()]
    unnamed = [broadcast(values) for values, _ in UNNAMED]
    return [odd, unnamed, raised(lambda: gather_values(own, group=group, device=CPU))]


UNNAMED: list[tuple[Any, str]] = [(None, "got NoneType"), ([1], "got list"), ({1: 2}, "name 1 .*got int")]


def unsupported() -> list[tuple[Any, str]]:
    """Values that do not travel between ranks, and what their refusals name."""
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    ragged = torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3])).transpose(1, 2)
    return [
        ({"deep": [{1, 2}]}, "type set"),
        ([object()], "type object"),
        (2**64, "int beyond 64 bits"),
        ("\ud800", "surrogates"),
        (deep, "recursion"),
        ({(1, 2): 3}, ""),
        (torch.float32, "type dtype"),
        (np.zeros(3), r"float64 array .*\(3,\)"),
        (np.empty((1, 1), object), r"object array .*\(1, 1\)"),
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (torch.empty(2, device="meta"), "meta device"),
        (ragged, "dim 1"),
        (PackedTensor([torch.eye(2).to_sparse()], 0), "sparse_coo"),
    ]


def layouts(here: Rank, _name: str) -> Any:
    """Leaders and sizes of the replicas of other meshes."""
    seen = {}
    for shape in [(2, 1, 2), (2, 2, 1), (1, 2, 2), (4, 1, 1)]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "cp", "tp"))
        dp, cp, tp = shape
        found = replica_group(DistributedContext(mesh, None, None, None, dp, tp, cp))
        size = 1 if found.group is None else torch.distributed.get_world_size(found.group)
        seen[str(shape)] = [found.leader, found.is_leader, size]
    return seen


FETCHES = [fetched, minted, unknown_lengths, independent, jagged, preprocessed, planned]
FETCHES += [plan_of_other_rows, unreadable, unreadable_of_unknown_lengths, without_rows]
FETCHES += [unreadable_by_one, preprocess_fails]
WRITES = [written, unwritable]
CLAIMS = [claimed, left_clean, one_rank_fails, ranks_disagree, fenced, cleared]
EXCHANGES = [exchanged, gathered, refused, layouts]
CASES: dict[str, Callable[[Rank, str], Any]] = {
    case.__name__: case for case in [*FETCHES, *WRITES, *CLAIMS, *EXCHANGES]
}


def play_cases(rank: int, address: str) -> dict[str, Any]:
    """What this rank saw, by case."""
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
    replica = replica_group(DistributedContext(mesh, None, None, None, 2, 2, 1))
    client = connect(address) if replica.is_leader else None
    here = Rank(rank, replica, mesh["dp"].get_group(), client, address)
    seen = {}
    for name, case in CASES.items():
        seen[name] = case(here, name)
        torch.distributed.barrier()
    if client is not None:
        client.close()
    return seen
