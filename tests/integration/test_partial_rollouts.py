"""Rollouts that one generator begins and another goes on with; only whole ones are trained."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import pytest
from tests.forked import FORKS, forking

from dataplane_client.client import Claim, DataPlaneClient, connect
from dataplane_client.errors import ClaimTimeoutError
from dataplane_client.options import TransportChoice
from dataplane_client.records.tasks import TaskPolicy

FIELDS = ["input_ids", "generation_logprobs", "token_versions"]
GRACE_S = {2: 3.0, 3: 60.0}
"""By version: the first generator is killed, the second lives on a busy machine, too."""


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """A group of version 1 whose producer had to stop: "whole" has six tokens, "part" two."""
    client.register_partition("p", FIELDS, 0, ["generate", "train"], per_token_fields=FIELDS)
    policies = {"generate": TaskPolicy(where="whole is null"), "train": TaskPolicy(where="whole == True")}
    client.set_policies("p", policies)
    with client.reserve_group("p", "prompt", ["whole", "part"], weight_version=1) as group:
        group.put(["whole", "part"], columns([range(6), range(2)], 1), [{"whole": True}, {}])
    return client


def columns(rows: list[range], version: int) -> dict[str, list[list[float]]]:
    """Tokens, and what belongs to them."""
    return {
        "input_ids": [list(row) for row in rows],
        "generation_logprobs": [[-token / 2 for token in row] for row in rows],
        "token_versions": [[version] * len(row) for row in rows],
    }


def go_on(client: DataPlaneClient, claim: Claim, version: int, most: int) -> None:
    """Sample the next tokens of one claimed row, one by one, until there are six; at most this many."""
    (name,) = claim.meta.sample_ids
    known = len(client.get_samples([name], "p", ["input_ids"])["input_ids"][0])
    for token in range(known, min(6, known + most)):
        tags = [{"whole": True}] if token == 5 else None
        claim.append_tokens([name], columns([range(token, token + 1)], version), tags)


def generate(pipe: Connection, address: str, transport: TransportChoice, version: int, most: int) -> None:
    """A generator in a process of its own. It says when it has sampled, and commits when it is told to."""
    with connect(address, transport=transport, session_grace_s=GRACE_S[version]) as client:
        claim = client.claim("p", "generate", FIELDS, 1)
        go_on(client, claim, version, most)
        pipe.send("sampled")
        pipe.recv()
        claim.commit()


def started(address: str, transport: TransportChoice, version: int, most: int) -> tuple[ForkServerProcess, Connection]:
    context = forking()
    pipe, theirs = context.Pipe()
    process = context.Process(target=generate, args=(theirs, address, transport, version, most))
    process.start()
    return process, pipe


def claim_whole(client: DataPlaneClient, timeout_s: float = 200.0) -> Claim:
    return client.claim("p", "train", FIELDS, 1, whole_groups=True, timeout_s=timeout_s)


@FORKS
def test_another_generator_goes_on_where_one_was_killed_and_the_trainer_gets_the_group_when_it_is_whole(
    flow: DataPlaneClient, address: str, transport: TransportChoice, threads: ThreadPoolExecutor
) -> None:
    killed, of_killed = started(address, transport, 2, 2)
    assert of_killed.recv() == "sampled"
    with pytest.raises(ClaimTimeoutError, match=r"1 of 2 .*'train' \(1 "):
        claim_whole(flow, 0)
    flow.close_partition("p")  # a row that may become whole is not the end of data
    trainer = threads.submit(claim_whole, flow)
    killed.kill()
    killed.join(60)
    second, of_second = started(address, transport, 3, 6)
    assert of_second.recv() == "sampled"
    with trainer.result(200) as claim:
        rows = flow.get_samples(claim.meta.sample_ids, "p", FIELDS)
        assert claim.meta.sample_ids == ["whole", "part"]
        assert [row.tolist() for row in rows["input_ids"].unbind()] == [list(range(6))] * 2
        assert rows["generation_logprobs"][1].tolist() == [-token / 2 for token in range(6)]
        assert [row.tolist() for row in rows["token_versions"].unbind()] == [[1] * 6, [1, 1, 2, 2, 3, 3]]
        assert [tag["weight_version"] for tag in claim.tags] == [1, 1]
    of_second.send("commit")
    second.join(60)
    assert second.exitcode == 0
    ended = flow.partition("p").task("generate").ended_deliveries
    assert (ended["expired"], ended["committed"]) == (1, 1)


def test_a_row_that_is_released_while_it_is_partial_goes_to_the_next_generator(flow: DataPlaneClient) -> None:
    claim = flow.claim("p", "generate", FIELDS, 1)
    go_on(flow, claim, 2, 3)
    claim.release()
    with flow.claim("p", "generate", FIELDS, 1) as claim:
        assert (claim.meta.sample_ids, claim.sequence_lengths) == (["part"], [5])
        go_on(flow, claim, 3, 1)
    assert claim_whole(flow).meta.size == 2
    with pytest.raises(ClaimTimeoutError):
        flow.claim("p", "generate", FIELDS, 1, timeout_s=0)
