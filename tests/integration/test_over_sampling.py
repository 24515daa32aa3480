"""Over-sampling: more groups are begun than a step trains; those that are complete first count, the rest is ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dataplane_client.client import Claim, DataPlaneClient, Group, connect
from dataplane_client.errors import GroupFencedError
from dataplane_client.options import TransportChoice
from dataplane_client.records.tasks import TaskPolicy

BEGUN, TRAINED = 5, 2


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p, whose trainer takes rows of its own version only."""
    client.register_partition("p", ["x"], 0, ["train"], clear_when_consumed=True)
    client.set_policies("p", {"train": TaskPolicy(max_staleness=0, when_stale="drop")})
    return client


def add(group: Group) -> None:
    group.add([f"{group.group_id}/{group.meta.size}"], {"x": [0.0]})


def claim(client: DataPlaneClient) -> Claim:
    return client.claim("p", "train", ["x"], TRAINED, whole_groups=True, timeout_s=20)


def test_the_groups_that_are_complete_first_are_trained_and_the_producers_of_the_others_are_told(
    flow: DataPlaneClient, address: str, transport: TransportChoice, threads: ThreadPoolExecutor
) -> None:
    waiting, retired = threads.submit(claim, flow), 0
    with connect(address, transport=transport) as first, connect(address, transport=transport) as second:
        for version, order in enumerate([(4, 0, 2), (3, 1, 4), (1, 0, 3)]):
            groups = []
            for number in range(BEGUN):
                client = second if number % 2 else first
                groups.append(client.reserve_group("p", f"{version}-{number}", weight_version=version))
                add(groups[number])
            for number in order:
                add(groups[number])
                groups[number].commit()
            trained = claim(flow) if version else waiting.result(200)  # later claims come when more are complete
            assert [group.group_id for group in trained.groups] == [f"{version}-{number}" for number in order[:TRAINED]]
            trained.commit()
            retired += flow.set_weight_version("p", version + 1, retire_below=version + 1)
            in_the_middle = [group for group in groups if group.state == "open"]
            with pytest.raises(GroupFencedError):
                add(in_the_middle[0])
            with pytest.raises(GroupFencedError):
                in_the_middle[1].commit()
            partition, steps = flow.partition("p"), version + 1
            assert (partition.rows, partition.open_groups) == (0, 0)
            assert partition.removed_rows["consumed"] == 2 * TRAINED * steps
            assert partition.removed_rows["retired"] == 2 * steps
            assert partition.removed_rows["rolled_back"] == (1 + 1) * steps
            assert retired == (2 + 1 + 1) * steps


def test_a_producer_that_begins_late_with_old_weights_gets_a_hint_and_the_trainer_none_of_its_rows(
    flow: DataPlaneClient,
) -> None:
    flow.set_weight_version("p", 2, retire_below=2)
    late = flow.reserve_group("p", "late", weight_version=1)
    add(late)
    assert late.abort_hint == "weight version 1 is 1 behind 2; task 'train' takes at most 0"
    late.commit()
    assert flow.partition("p").removed_rows["stale"] == 1
