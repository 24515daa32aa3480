"""Our server keeps the promises of the kit, and the kit sees those that are broken."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.forked import FORKS

from dataplane_client import connect
from dataplane_conformance.__main__ import main
from dataplane_conformance.drivers.rl_dataplane import RLDataPlane
from dataplane_conformance.lab import BrokenError, Lab, Promise
from dataplane_conformance.promises import PROMISES
from dataplane_conformance.tests import broken

pytestmark = FORKS

NAMED = {promise.sentence: promise for promise in PROMISES}
QUICK = [
    "A row has one owner at a time",
    "A group is hidden until it is complete",
    "No delivered row is staler than the bound",
    "Every row is accounted for",
]
BROKEN = [
    (broken.DropsTenth, "Acknowledged rows are delivered once each", "lost"),
    (broken.HandsOutTwice, "A row has one owner at a time", "doubled"),
    pytest.param(broken.AcceptsLateCommits, "A late commit is refused", "doubled", marks=pytest.mark.long),
    (broken.ChangesABit, "Values come back bit for bit", "lost"),
    pytest.param(
        broken.PutsOneByOne, "A put is whole or not there if its client is killed", "", marks=pytest.mark.long
    ),
    (broken.ForgetsTheBound, "No delivered row is staler than the bound", ""),
    pytest.param(
        broken.RefusesWhatItCommits, "Under random kills every row is committed once", "lost", marks=pytest.mark.long
    ),
]


@pytest.mark.parametrize("sentence", QUICK)
def test_a_server_of_users_keeps(sentence: str, address: str) -> None:
    outcome = NAMED[sentence].judge(RLDataPlane(address))
    assert (outcome.verdict, outcome.lost, outcome.doubled) == ("held", [], [])
    assert outcome.acknowledged
    with connect(address) as client:
        assert client.partitions() == []


@pytest.mark.parametrize(("kind", "sentence", "rows"), BROKEN)
def test_the_kit_sees_what_is_broken(kind: type[RLDataPlane], sentence: str, rows: str, address: str) -> None:
    outcome = NAMED[sentence].judge(kind(address))
    assert outcome.verdict == "broken"
    assert {name for name in ("lost", "doubled") if getattr(outcome, name)} == ({rows} if rows else set())


@pytest.fixture(scope="module")
def own() -> Iterator[RLDataPlane]:
    """A server that promises may kill."""
    driver = RLDataPlane()
    try:
        driver.start()
        yield driver
    finally:
        driver.stop()


@pytest.mark.long
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.sentence.replace(" ", "_"))
def test_ours_keeps_every_promise(promise: Promise, own: RLDataPlane) -> None:
    """A promise in seconds has three tries: each answer waits for a disk that other tests keep busy."""
    for _ in range(3 if "waits" in promise.needs else 1):
        outcome = promise.judge(own)
        if outcome.verdict == "held":
            return
    pytest.fail(f"{outcome.verdict}: {outcome.because}")


def test_a_report_names_rows_and_the_exit_code_says_broken(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "Acknowledged rows are delivered", "--only", "survive"]
    assert main([address, *words, "--json"]) == 0
    held, *untried = json.loads(capsys.readouterr().out)["promises"]
    assert (held["verdict"], len(held["acknowledged"]), held["lost"]) == ("held", 64, [])
    assert {promise["verdict"] for promise in untried} == {"not tried"}
    assert main([address, *words, "--driver", f"{broken.__name__}:DropsTenth"]) == 1
    told = capsys.readouterr().out
    assert "lost: r00010, r00020" in told


def test_a_promise_is_tried_again_until_it_is_broken(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Lab] = []

    def breaks_at_the_second_try(lab: Lab) -> None:
        tries.append(lab)
        if len(tries) == 2:
            raise BrokenError("the second")

    promise = Promise("It holds", breaks_at_the_second_try, frozenset(), kills=False)
    monkeypatch.setattr("dataplane_conformance.__main__.PROMISES", [promise])
    assert main([address, "--repeat=4"]) == 1
    assert len(tries) == 2
    assert main([address, "--repeat=4"]) == 0
    assert len(tries) == 6


def test_arguments_that_are_wrong_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"--repeat=0": "--repeat: must be at least 1", "--driver=": "--driver", "nowhere": "is not an address"}
    for argument, named in wrong.items():
        with pytest.raises(SystemExit):
            main([argument])
        assert named in capsys.readouterr().err
