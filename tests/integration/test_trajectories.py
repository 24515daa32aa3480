"""Trajectories: rows whose number is known when the episode ends, and whose reward comes later still."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
from tests.forked import FORKS, forking
from tests.waiting import eventually

from dataplane_client.client import Claim, DataPlaneClient, Group, connect
from dataplane_client.errors import ClaimTimeoutError
from dataplane_client.options import TransportChoice


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p, whose rows a judge gives the rewards that the trainer requires."""
    client.register_partition("p", ["tokens", "reward"], 0, ["judge", "train"], per_token_fields=["tokens"])
    return client


def add_turn(group: Group) -> None:
    turn, trajectory = group.meta.size, group.group_id
    group.add([f"{trajectory}/{turn}"], {"tokens": [[turn] * (turn + 1)]}, [{"trajectory": trajectory}])


def turns_of(trajectory: str, turns: int) -> list[str]:
    return [f"{trajectory}/{turn}" for turn in range(turns)]


def claim(client: DataPlaneClient, task: str, trajectories: int, timeout_s: float = 20.0) -> Claim:
    fields = ["tokens"] if task == "judge" else ["tokens", "reward"]
    return client.claim("p", task, fields, trajectories, whole_groups=True, timeout_s=timeout_s)


def test_the_rows_of_a_trajectory_come_together_in_the_order_in_which_they_were_added(flow: DataPlaneClient) -> None:
    lengths = {"a": 9, "b": 1, "c": 6}
    groups = {name: flow.reserve_group("p", name) for name in lengths}
    turns = [name for name, length in lengths.items() for _ in range(length)]
    random.Random(5).shuffle(turns)
    for name in turns:
        add_turn(groups[name])
    for group in groups.values():
        group.commit()
    for reason in ("", "the judge failed", ""):
        claimed = claim(flow, "judge", 3)
        assert {group.group_id: group.rows for group in claimed.groups} == lengths
        assert claimed.meta.sample_ids == [
            row for group in claimed.groups for row in turns_of(group.group_id, group.rows)
        ]
        claimed.release(reason=reason)
        flow.reset("p", "judge", list(reversed(turns_of("a", 9))))


def test_trajectories_in_the_group_of_their_prompt_come_together_without_those_that_were_cleared(
    flow: DataPlaneClient,
) -> None:
    with flow.reserve_group("p", "prompt") as group:
        for turn in range(2):
            for name in ("t0", "failed", "t1"):
                group.add([f"{name}/{turn}"], {"tokens": [[turn]]}, [{"trajectory": name}])
        assert flow.clear_samples(None, "p", where="trajectory == 'failed'") == 2
    assert [tags["trajectory"] for tags in claim(flow, "judge", 1).tags] == ["t0", "t1", "t0", "t1"]


def produce(pipe: Connection, address: str, transport: TransportChoice, trajectory: str, turns: int) -> None:
    """A producer in a process of its own. It says when it is in the middle, and goes on when it is told to."""
    with connect(address, transport=transport, session_grace_s=3.0 if trajectory == "killed" else 60.0) as client:
        with client.reserve_group("p", trajectory) as group:
            for turn in range(turns):
                add_turn(group)
                if turn == 1:
                    pipe.send("in the middle")
                    pipe.recv()
        pipe.send("committed")


@FORKS
@pytest.mark.parametrize("way", ["unix", "shm"], indirect=True)
def test_a_trajectory_whose_producer_is_killed_vanishes_and_the_others_reach_the_trainer_with_their_rewards(
    flow: DataPlaneClient,
    address: str,
    transport: TransportChoice,
    threads: ThreadPoolExecutor,
) -> None:
    context = forking()
    lengths = {"short": 2, "long": 7, "killed": 4}  # the last has a short grace, and is killed when it is in the middle
    pipes = {name: context.Pipe() for name in lengths}
    processes = {
        name: context.Process(target=produce, args=(pipes[name][1], address, transport, name, turns))
        for name, turns in lengths.items()
    }
    for name, process in processes.items():
        process.start()
        assert pipes[name][0].recv() == "in the middle"
    assert (flow.partition("p").open_groups, flow.partition("p").rows) == (3, 6)
    processes["killed"].kill()
    for name in ("short", "long"):
        pipes[name][0].send("go on")
        assert pipes[name][0].recv() == "committed"
    for process in processes.values():
        process.join(60)
    trainer = threads.submit(claim, flow, "train", 2)
    for _ in range(2):
        judged = claim(flow, "judge", 1)
        assert not trainer.done()
        judged.commit({"reward": [float(judged.meta.size)] * judged.meta.size})
    claimed = trainer.result(200)
    assert sorted(claimed.meta.sample_ids) == [*turns_of("long", 7), *turns_of("short", 2)]
    rewards = flow.get_data(claimed.meta, ["reward"])["reward"].tolist()
    assert rewards == [float(group.rows) for group in claimed.groups for _ in range(group.rows)]
    eventually(lambda: flow.partition("p").open_groups == 0)
    assert (flow.partition("p").rows, flow.partition("p").removed_rows["rolled_back"]) == (9, 2)


@pytest.mark.parametrize("late", [False, True], ids=["before the commit", "after it"])
def test_a_reward_reaches_all_rows_of_its_trajectory_and_no_other(flow: DataPlaneClient, late: bool) -> None:
    with flow.reserve_group("p", "other") as other, flow.reserve_group("p", "t") as group:
        add_turn(other)
        add_turn(group)
        if not late:
            group.put_shared({"reward": [0.5]})
        add_turn(group)
    if late:
        meta = flow.list_samples("p", where="trajectory == 't'").meta
        flow.put_samples(meta.sample_ids, "p", {"reward": [0.5] * meta.size}, generations=meta.generations)
    claimed = claim(flow, "train", 1)
    assert claimed.meta.sample_ids == turns_of("t", 2)
    assert flow.get_data(claimed.meta, ["reward"])["reward"].tolist() == [0.5] * 2
    with pytest.raises(ClaimTimeoutError, match=r"1 of 1 .*'reward'"):
        claim(flow, "train", 1, timeout_s=0)
