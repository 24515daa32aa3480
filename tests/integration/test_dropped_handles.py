"""Claims and groups that their holder drops while they are open are given up at once, with a warning."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest
import torch
from tests.waiting import eventually

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import ClaimNotFoundError

WARNING = r"^<(Async)?Claim .* p/train 1 rows open> was garbage-collected while open, and its rows are given up: end it"


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with the row a, claimed by nobody."""
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["a"], "p", {"x": torch.zeros(1)})
    return client


@pytest.fixture
def silent() -> Iterator[None]:
    """A test in which nothing warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def claimed_rows(client: DataPlaneClient) -> int:
    return client.partition("p").task("train").claimed_rows


@pytest.mark.fresh_server
def test_a_dropped_claim_gives_its_rows_back_and_says_so(flow: DataPlaneClient) -> None:
    claim = flow.claim("p", "train", ["x"], 1)
    assert claimed_rows(flow) == 1
    with pytest.warns(ResourceWarning, match=WARNING):
        del claim
    eventually(lambda: claimed_rows(flow) == 0)
    again = flow.claim("p", "train", ["x"], 1, timeout_s=200.0)
    assert again.deliveries == [2]
    assert [event.reason for event in flow.sample("p", "a").events if event.what == "released"] == [
        "garbage-collected while open"
    ]
    again.commit()


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_a_claim_of_a_cycle_is_given_up_by_the_collector_in_any_thread(flow: DataPlaneClient) -> None:
    cycle: list[object] = [flow.claim("p", "train", ["x"], 1)]
    cycle.append(cycle)
    del cycle
    with pytest.warns(ResourceWarning, match=WARNING), ThreadPoolExecutor(1) as thread:
        thread.submit(gc.collect).result(200)
    eventually(lambda: claimed_rows(flow) == 0)


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_a_claim_may_be_dropped_by_whoever_holds_the_locks_of_the_session(flow: DataPlaneClient) -> None:
    claim = flow.claim("p", "train", ["x"], 1)
    with pytest.warns(ResourceWarning, match=WARNING), flow._session._liveness._thread()._posting:
        del claim
    eventually(lambda: claimed_rows(flow) == 0)


def test_a_dropped_group_is_rolled_back(flow: DataPlaneClient) -> None:
    group = flow.reserve_group("p", "g", ["g0"])
    with pytest.warns(ResourceWarning, match=r"^<Group .* p/g 1 rows open>"):
        del group
    eventually(lambda: flow.partition("p").open_groups == 0)


@pytest.mark.parametrize(
    "call", [lambda c: c.claim("p", "train", ["x"], 1), lambda c: c.reserve_group("p", "g", ["h"])]
)
@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_what_is_granted_while_a_signal_interrupts_the_call_is_given_up(
    flow: DataPlaneClient, call: Callable[[DataPlaneClient], object]
) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name in ("decode_grant", "generations_of"):
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(flow)
    assert sys.getprofile() is None
    eventually(lambda: claimed_rows(flow) == flow.partition("p").open_groups == 0)


async def test_an_asynchronous_client_gives_up_what_is_dropped(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient
) -> None:
    claim, group = await async_client.claim("p", "train", ["x"], 1), await async_client.reserve_group("p", "g", ["g0"])
    with pytest.warns(ResourceWarning, match=WARNING):
        del claim
    with pytest.warns(ResourceWarning, match=r"^<AsyncGroup "):
        del group
    eventually(lambda: claimed_rows(flow) == flow.partition("p").open_groups == 0)


@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_puts_that_were_never_sent_are_lost_with_a_warning(flow: DataPlaneClient) -> None:
    batching = flow.batching()
    batching.put_later(["b"], "p", {"x": torch.zeros(1)})
    with pytest.warns(ResourceWarning, match=r"^1 puts that batching\(\) held .* are lost"):
        del batching


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "release", "detach"])
@pytest.mark.usefixtures("silent")
def test_a_claim_that_was_ended_is_dropped_in_silence(flow: DataPlaneClient, end: str) -> None:
    claim = flow.claim("p", "train", ["x"], 1)
    getattr(claim, end)()
    del claim
    flow.server_status()
    assert claimed_rows(flow) == (end == "detach")


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.usefixtures("silent")
def test_a_shard_that_was_adopted_and_dropped_stays_with_the_ranks_that_share_it(
    flow: DataPlaneClient, address: str
) -> None:
    shard, share = (flow.claim_shard("p", "train", ["x"], 1, step=0, dp_rank=0, dp_world=1) for _ in range(2))
    with connect(address) as other:
        adopted = other.adopt_claim(shard.detach(), shard.meta)
        del adopted
        assert share.commit() == 1


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.usefixtures("silent")
def test_a_claim_that_was_ended_elsewhere_is_dropped_in_silence_once_it_knows(
    flow: DataPlaneClient, address: str
) -> None:
    claim = flow.claim("p", "train", ["x"], 1)
    with connect(address) as other:
        other.adopt_claim(claim.claim_id, claim.meta).commit()
    with pytest.raises(ClaimNotFoundError):
        claim.commit()
    del claim


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.usefixtures("silent")
def test_what_a_closed_client_held_is_dropped_in_silence(flow: DataPlaneClient, address: str) -> None:
    with connect(address) as other:
        held = [other.claim("p", "train", ["x"], 1), other.reserve_group("p", "g", ["g0"])]
    held.clear()


@pytest.mark.parametrize("way", ["unix"], indirect=True)
@pytest.mark.parametrize("forks", [False, pytest.param(True, marks=pytest.mark.long)], ids=["exits", "forks"])
def test_a_process_that_ends_with_an_open_claim_and_a_forked_child_say_nothing(
    flow: DataPlaneClient, address: str, forks: bool
) -> None:
    """The end of the process ends the session. A child that drops its copy of a claim leaves the parent's alone."""
    code = (
        "import os\n"
        "from dataplane_client import connect\n"
        f"client = connect({address!r})\n"
        "claim = client.claim('p', 'train', ['x'], 1)\n"
        f"child = os.fork() if {forks} else -1\n"
        "if child == 0:\n"
        "    del claim\n"
        "    os._exit(0)\n"
        "elif child > 0:\n"
        "    os.waitpid(child, 0)\n"
        "    assert client.partition('p').task('train').claimed_rows == 1\n"
        "    claim.release()\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    noise = [line for line in done.stderr.splitlines() if "fork" not in line]  # gRPC logs forks
    assert (done.returncode, done.stdout, noise) == (0, "", [])
    eventually(lambda: claimed_rows(flow) == 0)


@pytest.mark.parametrize("message", ["CUDA out of memory on rank 3", "", "ä" * 300, "two\nlines"], ids=repr)
@pytest.mark.parametrize("way", ["unix"], indirect=True)
def test_a_dead_letter_keeps_the_message_of_the_exception(client: DataPlaneClient, message: str) -> None:
    client.register_partition("p", ["x"], 0, ["train"], max_deliveries=1)
    client.put_samples(["a"], "p", {"x": torch.zeros(1)})
    with pytest.raises(RuntimeError), client.claim("p", "train", ["x"], 1):
        raise RuntimeError(message)
    (letter,) = client.dead_letters("p", "train")
    full = f"RuntimeError: {' '.join(message.split())}" if message else "RuntimeError"
    assert letter.reason == full.encode()[:256].decode(errors="ignore")
