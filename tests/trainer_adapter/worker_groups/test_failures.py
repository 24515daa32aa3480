"""Which of several failures is reported, and what ranks must agree on."""

from __future__ import annotations

import pytest
import torch
from tests.ranks import run_ranks

from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter.worker_groups._digest import digest_of_call
from trainer_adapter.worker_groups._failures import Failure, common_error, failed_error
from trainer_adapter.worker_groups._ray_actor import gpu_number
from trainer_adapter.worker_groups._ray_options import RayGroupOptions
from trainer_adapter.worker_groups._ray_placement import Seat, assign_seats, require_ray
from trainer_adapter.worker_groups._replicas import Replicas

REAL = Failure("ValueError", "no")
ECHO = Failure("RuntimeError", "another rank failed: reading")
TOLD = Failure("UnavailableError", "rank 0: no server")
UNREAD = Failure("RuntimeError", "another data-parallel rank could not read its rows; see that rank's error")
REPLICA = Failure("RuntimeError", "another rank of the replica failed: NotFoundError: gone")
RESET = Failure("RuntimeError", "[...] Connection closed by peer [192.0.2.2]:1")
CLOSED = Failure("RuntimeError", "Application timeout caused pair closure")
DEAD = Failure("ActorDiedError", "gone", died=True)
AWAY = Failure("UnavailableError", "ReadColumns at unix:a: the shm connection broke: Connection reset by peer")
LATE = Failure("TimeoutError", "not all 3 ranks joined the group for weights: Connection reset by peer")


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ({1: REAL, 0: REAL}, 1),
        ({0: ECHO, 2: REAL}, 2),
        ({0: UNREAD, 1: REPLICA, 2: REAL}, 2),
        ({0: RESET, 1: RESET, 3: DEAD}, 3),
        ({0: REAL, 1: DEAD}, 1),
        ({2: ECHO, 1: RESET}, 2),
        ({0: CLOSED, 2: REAL}, 2),
    ],
    ids=["earliest", "not_an_echo", "nor_these", "death_explains_resets", "death_explains_all", "echoes_alone", "late"],
)
def test_the_failure_that_caused_the_others_is_named(failures: dict[int, Failure], first: int) -> None:
    found = failed_error("train", failures, [7, 5])
    assert found.rank == first
    assert str(found).startswith(f"train: rank {first} failed: {failures[first].kind}: {failures[first].text}")
    assert str(found).endswith("(rank(s) 5, 7 did not finish); the group is broken: shut it down")


@pytest.mark.parametrize(
    ("failures", "raised"),
    [
        ({0: REAL, 1: REAL}, 0),
        ({0: ECHO, 1: REAL}, 1),
        ({1: TOLD, 0: REAL}, 0),
        ({0: AWAY, 1: AWAY}, 0),
        ({0: LATE, 1: LATE}, 0),
        ({0: REAL}, None),
        ({0: REAL, 1: RESET}, None),
        ({0: REAL, 1: Failure("DistBackendError", "NCCL error")}, None),
        ({0: REAL, 1: DEAD}, None),
    ],
    ids=["alike", "together", "told", "no_server", "no_engine", "one", "reset", "nccl", "dead"],
)
def test_ranks_have_common_error_when_all_raised_and_none_was_lost(
    failures: dict[int, Failure], raised: int | None
) -> None:
    errors = {rank: ValueError(rank) for rank in failures}
    known = {rank: Failure(f.kind, f.text, errors[rank], f.died) for rank, f in failures.items()}
    assert common_error(known, 2) is (None if raised is None else errors[raised])


META = KVBatchMeta("train", "train", ["a", "b"], sequence_lengths=[3, 4])
BIG = torch.zeros(100_000)


def nested(*lengths: int) -> torch.Tensor:
    """Equal elements in rows of these lengths."""
    return torch.nested.nested_tensor_from_jagged(torch.arange(3.0), torch.tensor([0, *lengths]).cumsum(0))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"meta": META}, {"meta": META.subset([1, 0])}),
        ({"meta": META}, {"meta": META.with_fields(["x"])}),
        ({"data": {"x": nested(1, 2)}}, {"data": {"x": nested(2, 1)}}),
        ({"gbs": 4}, {"gbs": 8}),
        ({"gbs": 4}, {"mbs": 4}),
        ({"data": {"x": torch.tensor([1])}}, {"data": {"x": torch.tensor([2])}}),
        ({"data": {"x": torch.tensor([1])}}, {"data": {"x": torch.tensor([1.0])}}),
        ({"data": {"x": torch.zeros(2, 3)}}, {"data": {"x": torch.zeros(3, 2)}}),
        ({"data": {"x": BIG}}, {"data": {"x": BIG + 1}}),
        ({"data": ["ab", "c"]}, {"data": ["a", "bc"]}),
        ({"loss_fn": META}, {"loss_fn": RayGroupOptions(1)}),
    ],
    ids=["rows", "fields", "lengths", "value", "name", "element", "dtype", "shape", "sampled", "bounds", "kind"],
)
def test_calls_that_differ_have_different_digests(one: dict[str, object], other: dict[str, object]) -> None:
    assert digest_of_call("train", one) == digest_of_call("train", dict(one))
    assert digest_of_call("train", one) != digest_of_call("train", other)
    assert digest_of_call("train", one) != digest_of_call("score", one)


def test_ranks_are_numbered_node_by_node() -> None:
    found = assign_seats({0: "a", 1: "b", 2: "a", 3: "c", 4: "b"})
    assert found == [Seat(0, 0), Seat(2, 1), Seat(1, 0), Seat(4, 1), Seat(3, 0)]


@pytest.mark.parametrize(
    ("gpu", "visible", "number"), [("3", "3", 0), ("5", None, 5), ("6", "4,5,6,7", 2), ("GPU-b", "GPU-a,GPU-b", 1)]
)
def test_a_rank_uses_the_gpu_that_ray_gave_it_however_many_it_sees(gpu: str, visible: str | None, number: int) -> None:
    assert gpu_number(gpu, visible) == number


def layout(rank: int, dp: int, tp: int = 0, cp: int = 0) -> dict[str, int]:
    return {"rank": rank, "dp_rank": dp, "tp_rank": tp, "cp_rank": cp}


def test_the_leader_of_a_shard_is_the_rank_at_the_origin_of_its_replicas() -> None:
    found = Replicas.from_layouts([layout(0, 0, 1), layout(1, 1, 0), layout(2, 1, 0, 1), layout(3, 0, 0)])
    assert found == Replicas(dp_rank_of=(0, 1, 1, 0), leaders=(3, 1))


@pytest.mark.parametrize(
    ("layouts", "rule"),
    [
        ([layout(1, 0), layout(0, 1)], "worker of rank 0 reports rank 1"),
        ([layout(0, 0), layout(1, 2)], "do not form a grid"),
        ([layout(0, 0), layout(1, 1, 1)], "do not form a grid"),
    ],
)
def test_ranks_that_contradict_each_other_are_refused(layouts: list[dict[str, int]], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Replicas.from_layouts(layouts)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"num_workers": 0}, "num_workers .*0"),
        ({"cpus_per_worker": 0}, "cpus_per_worker"),
        ({"gpus_per_worker": 2}, "gpus_per_worker .*2"),
        ({"strategy": "PACKED"}, "strategy .*PACK, SPREAD, .*'PACKED'"),
        ({"call_timeout_s": 0.0}, "call_timeout_s"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(given: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        RayGroupOptions(**{"num_workers": 2, **given}).validate()  # type: ignore[arg-type]  # wrong on purpose


def require_ray_before_init() -> None:
    with pytest.raises(RuntimeError, match=r"call ray.init\(\)"):
        require_ray()


@pytest.mark.xdist_group("ranks")  # where processes are forked anyway
def test_before_ray_init_a_group_says_what_to_call() -> None:
    """In a new process: other tests may have started a cluster in this one, and shared ranks must not import Ray."""
    pytest.importorskip("ray")
    run_ranks(require_ray_before_init, [()], warning="default")
