"""`dataplane replay`: the incident of a trainer that starved, told from what its killed server has left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import commands
from tests.client.cli.reading import DATAPLANE, read, run, run_json
from tests.integration.command.conftest import Start
from tests.waiting import eventually

from dataplane_client import ClaimTimeoutError, InvalidArgumentError, connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

SCREENS = {
    "describe": ["describe", "train"],
    "sample": ["sample", "train", "b0"],
    "samples": ["samples", "train", "--task", "policy", "--state", "untaken", "-n", "1"],
    "claims": ["claims"],
    "sessions": ["sessions"],
    "top": ["top", "-n", "1"],
    "status": ["status"],
}
RECENT = (r"in the last ~|since registration", r"[-<\d.]+ (?:rows|MB)/s", r"(?<=\s)(?:<?\d+\.\d+|-)(?=\s)")
"""A server tells counts of the last minute, a replay those since registration. Here both are the same."""
ROWS = {"input_ids": [torch.arange(3)] * 2}
REWARDS = {"reward": [1.0, 0.5]}
_APART_S = 0.005
"""Times are written to the millisecond, and the log counts on from one look at the wall clock."""


@dataclass(frozen=True)
class Incident:
    """moment: when the screens were read. waits: the seconds for which the trainer's claim had waited, as the server
    said between two times.
    """

    data: Path
    moment: str
    screens: dict[str, str]
    waits: tuple[str, float, str]


def now() -> str:
    """The time, in a millisecond in which nothing else happens."""
    time.sleep(_APART_S)
    moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    time.sleep(_APART_S)
    return moment


@pytest.fixture(scope="module")
def incident(start_for_all: Start, tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """A trainer has trained on a0 and a1. It waits for b0 and b1, whose producer has put no rewards. Later they come,
    and the operator clears all. Then the server is killed.
    """
    folder = tmp_path_factory.mktemp("incident")
    address, data = f"unix://{folder}/s", folder / "data"
    server = start_for_all("--listen", address, "--data-dir", str(data))
    with connect(address, client_name="rollout-0") as rollout, connect(address, client_name="trainer-0") as trainer:
        rollout.register_partition("train", ["input_ids", "reward"], 0, ["policy"])
        rollout.put_samples(["a0", "a1"], "train", {**ROWS, **REWARDS})
        trainer.claim("train", "policy", ["input_ids", "reward"], 2).commit()
        rollout.put_samples(["b0", "b1"], "train", ROWS)
        claims: list[Any] = []
        waiting = threading.Thread(
            target=lambda: claims.append(trainer.claim("train", "policy", ["input_ids", "reward"], 2))
        )
        waiting.start()
        eventually(lambda: rollout.claims().waiting)
        moment = now()
        screens = {name: run(*screen, "-s", address)[1] for name, screen in SCREENS.items()}
        before = now()
        wait_s = run_json("claims", "-s", address)["waiting"][0]["age_s"]
        waits = before, wait_s, now()
        with pytest.raises(ClaimTimeoutError):
            rollout.claim("train", "policy", ["reward"], 2, timeout_s=0.01)
        rollout.put_samples(["b0", "b1"], "train", REWARDS)
        waiting.join()
        claims[0].release(reason="NaN in the loss")
        rollout.clear_samples(None, "train")
    server.end(signal.SIGKILL)
    return Incident(data, moment, screens, waits)


def replay(data: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `dataplane replay DIR`."""
    done = commands.run([DATAPLANE, "replay", str(data), *arguments], env={**os.environ, "COLUMNS": "200"})
    return done.returncode, done.stdout, done.stderr


def told(incident: Incident, *arguments: str) -> list[dict[str, Any]]:
    code, text, _ = replay(incident.data, *arguments, "-o", "json")
    assert code == 0
    return list(map(json.loads, text.splitlines()))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "describe" else pytest.mark.long) for name in SCREENS]
)
def test_a_screen_of_a_moment_shows_what_the_server_showed_then(incident: Incident, name: str) -> None:
    code, shown, note = replay(incident.data, "--until", incident.moment, *SCREENS[name])
    assert (code, note.count("\n")) == (0, 1)
    masked = (
        r"unix:\S+:",
        r"replay at \S+:",
        r"\d+%",
        r"(?m)^  values .*$",
        *RECENT,
    )  # the log does not tell how values travelled
    assert read(shown, *masked) == read(incident.screens[name], *masked)
    assert read(replay(incident.data, *SCREENS[name])[1], *masked) != read(shown, *masked)  # at the end of the log


def test_the_status_of_a_moment_is_that_of_a_replay(incident: Incident) -> None:
    first = replay(incident.data, "--until", incident.moment, "status")[1].splitlines()[0]
    assert re.fullmatch(r"replay at 20[-\dT:.]+Z: serving, healthy", first)


def test_waits_and_ages_are_counted_until_the_moment(incident: Incident) -> None:
    before, live_s, after = incident.waits
    ages = []
    for moment in (before, after):
        listed = json.loads(replay(incident.data, "--until", moment, "claims", "-o", "json")[1])
        [waiting] = listed["waiting"]
        assert (waiting["client"], waiting["lacking_rows"]) == ("trainer-0", {"reward": 2})
        ages.append(waiting["age_s"])
    assert ages[0] <= live_s <= ages[1]
    elapsed = datetime.fromisoformat(after) - datetime.fromisoformat(before)
    assert ages[1] - ages[0] == pytest.approx(elapsed.total_seconds(), abs=1e-3)


def test_the_calls_that_concern_a_sample_are_told_and_no_others(incident: Incident) -> None:
    calls = [
        (call["call"], call["who"], [change["what"] for change in call["changes"] if "ticket" not in change])
        for call in told(incident, "--sample", "b0")
    ]
    assert calls == [
        ("PutSamples", "rollout-0", ["put"]),
        ("PutSamples", "rollout-0", ["put", "claimed"]),
        ("ReleaseClaim", "", ["released"]),
        ("ClearSamples", "", ["cleared"]),
    ]


def test_a_line_tells_a_call_its_outcome_and_what_it_changed(incident: Incident) -> None:
    code, text, _ = replay(incident.data)
    assert code == 0
    day, *lines = [re.sub(r"\b[0-9a-f]{12}-", "", line) for line in text.splitlines()]
    assert day == f"{incident.moment[:10]} UTC, life 1 of the server"
    assert len(lines) == len(told(incident))
    for words in (
        "put_samples        rollout-0    train        2 rows (b0, b1) columns=input_ids -> created_rows=2 size_bytes=",
        "claim              trainer-0    train/policy required_fields=input_ids,reward batch_size=2 min_size=2 -> ",
        "(b0, b1) columns=reward -> created_rows=0 size_bytes=8; put fields=reward; claimed who=trainer-0 task=policy ",
        "released 2 rows (b0, b1) partition_id=train who=trainer-0 task=policy",
        "all rows -> cleared_rows=4 size_bytes=112; cleared",
        "2 of 2 untaken rows lack field 'reward'; it was last put",
    ):
        assert any(words in line for line in lines), (words, text)
    verbs = {line[24:42].strip() for line in lines}
    assert verbs >= {"register_partition", "put_samples", "claim", "commit", "release", "clear_samples"}
    assert [verb for verb in verbs if verb != verb.lower()] == []
    last = replay(incident.data, "--last", "3")[1].splitlines()
    assert [re.sub(r"\b[0-9a-f]{12}-", "", line) for line in last[1:]] == lines[-3:]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["reset", "train", "policy", "--all"], 1, "until 20"),
        (["reset", "train", "policy", "--all"], 1, "Z: it is read-only, and has no values"),
        (["doctor"], 2, "'doctor' shows no state of a server"),
        (["nothing"], 2, "No such command 'nothing'"),
        (["describe", "val"], 1, "there is no partition 'val'"),
        (["--until", "-1h", "describe", "train"], 2, "'-1h' is not a time"),
        (["--until", "-3600s", "describe", "train"], 2, "it covers the time from 20"),
        (["--check", "describe", "train"], 2, "--check go without SCREEN"),
        (["--check", "--until", "-1s"], 2, "goes without --until"),
        (["--last", "3", "describe", "train"], 2, "--last"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(
    incident: Incident, arguments: list[str], code: int, words: str
) -> None:
    ended, _, error = replay(incident.data, *arguments)
    assert (ended, "Traceback" in error) == (code, False)
    assert words in error


def test_a_replay_takes_no_values(incident: Incident, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dataplane_server.replaying", str(incident.data), "--serve-in", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replaying:
        assert replaying.stdout is not None
        with (
            connect(replaying.stdout.readline().strip(), transport="grpc", timeout_s=120.0) as client,
            pytest.raises(InvalidArgumentError, match="it is read-only, and has no values"),
        ):
            client.put_samples(["c0", "c1"], "train", ROWS)
        replaying.communicate()


def test_a_replay_changes_nothing(incident: Incident) -> None:
    def state() -> list[tuple[str, int, int]]:
        paths = [incident.data, *sorted(incident.data.iterdir())]
        return [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    before = state()
    for arguments in ([], ["--check"], ["describe", "train"]):
        assert replay(incident.data, *arguments)[0] == 0
    assert state() == before


@pytest.mark.long
def test_a_running_server_is_replayed_up_to_now_with_its_history(tmp_path: Path) -> None:
    data = tmp_path / "data"
    listen, limits = (f"unix://{tmp_path}/s",), Limits(memory_bytes=1 << 20)
    config = ServerConfig(listen, limits=limits, durability="process", data_dir=data, checkpoint_calls=40)
    thread = ServerThread(config)
    with connect(thread.addresses[0]) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        eventually(lambda: client.put_samples(["a"], "p", {"x": [1.0]}) and list(data.glob("checkpoint-*[0-9]"))[1:])
        live = client.partition("p").rows_put_total
        code, text, _ = replay(data, "describe", "p", "-o", "json")
        assert (code, json.loads(text)["rows_put_total"]) == (0, live)
        client.put_samples(["b"], "p", {"x": [1.0]})
    thread.stop()
    code, text, note = replay(data, "--check")
    assert (code, text.count("equal")) == (0, len(list(data.glob("checkpoint-*"))))
    assert note.startswith("records 0 to ")
