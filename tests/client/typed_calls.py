"""Calls that mypy checks and no test runs: the client's types, and wrong calls that a type checker finds."""

from __future__ import annotations

from typing_extensions import assert_type

from dataplane_client import (
    Claim,
    DataPlaneClient,
    GivenUpGroup,
    Group,
    GroupList,
    KVBatchMeta,
    ReservedGroup,
    aio,
    connect,
)


def blocking() -> None:
    with connect(timeout_s=3.0) as client:
        assert_type(client, DataPlaneClient)
        with client.claim("p", "train", ["x"], 1) as claim:
            assert_type(claim, Claim)
            assert_type(claim.sequence_lengths[0], int)
            assert_type(claim.tags[0]["version"], "str | int | float | bool | None")
            assert_type(claim.meta.drop([0]), "KVBatchMeta | None")
        with client.reserve_group("p", "g", ["a"]) as group:
            assert_type(group, Group)
        assert_type(listed := client.groups("p"), GroupList)
        assert_type(listed.groups, list[ReservedGroup])
        assert_type(listed.given_up, list[GivenUpGroup])
    connect("host:1", timeout=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    connect("host:1", transport="tcp")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def asynchronous(meta: KVBatchMeta) -> None:
    async with aio.connect() as client:
        assert_type(client, aio.AsyncDataPlaneClient)
        async with client.claim("p", "train", ["x"], 1) as claim, client.reserve_group("p", "g", ["a"]) as group:
            assert_type(claim, aio.AsyncClaim)
            assert_type(group, aio.AsyncGroup)
        async with await client.adopt_claim("id", meta) as adopted:
            assert_type(adopted, aio.AsyncClaim)
        assert_type(await client.claim_shard("p", "t", [], 1, step=1, dp_rank=0, dp_world=1), aio.AsyncClaim)
        await client.claim("p", "train", ["x"], size=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(await aio.connect("host:1"), aio.AsyncDataPlaneClient)
    await aio.connect("host:1", timeout=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
