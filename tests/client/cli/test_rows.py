"""`dataplane sample`, `dead-letters` and `reset`."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest
import torch
from tests.client.cli.reading import run, run_json
from xxhash import xxh3_64_hexdigest

from dataplane_client import ClaimFencedError, connect, digest_of_rows


def test_a_sample_is_shown_with_its_history(troubled: str) -> None:
    code, text = run("sample", "p", "a", "-s", troubled)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("sample a in partition p: generation ")
    assert lines[1:3] == ["fields: x", "tags: prompt='[red]7 :fire:'"]
    assert ["train", "dead", "2"] in [line.split() for line in lines]
    events = lines[next(number for number, line in enumerate(lines) if line.startswith("age ")) + 1 :]
    words = ["put", "claimed", "released", "claimed", "released", "dead_letter"]
    assert [line.split()[2] for line in events] == words
    assert "rollout-0" in events[0]
    assert events[2].rstrip().endswith("NaN in the loss")
    assert events[4].rstrip().endswith("out of [bold]memory")


def test_a_cleared_sample_still_has_its_history(troubled: str) -> None:
    code, text = run("sample", "p", "b", "-s", troubled)
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "sample b is no longer in partition p"
    assert [line.split()[2] for line in lines[2:]] == ["put", "claimed", "committed", "cleared"]


def test_a_sample_of_a_reserved_group_is_shown_as_hidden(troubled: str) -> None:
    with connect(troubled) as client:
        group = client.reserve_group("p", "prompt-7", ["g"])
        _, text = run("sample", "p", "g", "-s", troubled)
        group.abort()
    assert "group: prompt-7 (still reserved, so claims do not see it)" in text.splitlines()
    assert "fields: none yet" in text.splitlines()


def test_json_output_of_samples_and_dead_letters(troubled: str) -> None:
    sample = run_json("sample", "p", "a", "-s", troubled)
    assert (sample["resident"], sample["fields"], sample["tags"]) == (True, ["x"], {"prompt": "[red]7 :fire:"})
    state = {"task": "train", "state": "dead", "deliveries": 2, "claim_id": "", "step": None, "dp_rank": None}
    assert sample["tasks"] == [state]
    assert sample["events"][-1]["what"] == "dead_letter"
    letters = run_json("dead-letters", "p", "train", "-s", troubled)
    assert letters == [{"sample_id": "a", "deliveries": 2, "reason": "out of [bold]memory"}]


def test_dead_letters_are_listed_with_their_last_reason_until_they_are_reset(troubled: str) -> None:
    code, text = run("dead-letters", "p", "train", "-s", troubled)
    assert (code, text.splitlines()[1].split()) == (0, ["a", "2", "out", "of", "[bold]memory"])
    assert run("reset", "p", "train", "a", "-s", troubled) == (0, "rows reset: 1, claims fenced: 0\n")
    assert run("dead-letters", "p", "train", "-s", troubled) == (0, "no dead letters\n")


def test_dead_letters_are_reset_and_no_other_rows(troubled: str) -> None:
    with connect(troubled) as client:
        held = client.claim("p", "train", ["x"], 1)
        assert run("reset", "p", "train", "--dead", "-s", troubled) == (0, "rows reset: 1, claims fenced: 0\n")
        assert run("reset", "p", "train", "--dead", "-s", troubled) == (0, "no dead letters\n")
        held.commit()
        assert client.claim("p", "train", ["x"], 1).meta.sample_ids == ["a"]
        assert client.partition("p").task("train").consumed_rows == 1


def test_a_step_says_what_its_rows_consist_of(troubled: str) -> None:
    values = {"x": torch.arange(8.0).view(2, 4)}
    with connect(troubled, client_name="rollout-1") as client, connect(troubled, client_name="rank-0") as trainer:
        client.register_partition("q", ["x", "logprob"], 2, ["train"], digests=True)
        client.put_samples(["s1", "s2"], "q", values, [{"weight_version": 7}, {"weight_version": 8}])
        shard = trainer.claim_shard("q", "train", ["x"], step=3, dp_rank=0, dp_world=1, batch_size=2)
        shard.write({"logprob": torch.ones(2)})
        shard.commit()
        rows = shard.provenance()
    code, text = run("prove", "q", "3", "-s", troubled)
    assert (code, text.splitlines()[0]) == (0, f"step 3 of task train: 2 rows, digest {digest_of_rows(rows)}")
    first = [
        "s1",
        "0",
        "7",
        "x",
        xxh3_64_hexdigest(values["x"][0].numpy().tobytes()),
        "rollout-1",
        "1",
        "consumed",
        "rank-0",
    ]
    of_step = [line.split() for line in text.splitlines()[3:]]
    assert of_step[0] == first
    assert of_step[1][::2] == ["logprob", "rank-0"]
    proved = run_json("prove", "q", "3", "--task", "train", "-s", troubled)
    assert proved == {"digest": digest_of_rows(rows), "rows": [asdict(row) for row in rows]}
    assert digest_of_rows(rows[::-1]) != digest_of_rows([replace(rows[0], weight_version=6), rows[1]])
    assert digest_of_rows(rows[::-1]) == digest_of_rows(rows)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["drop", "q"], "there is no partition 'q'"),
        (["prove", "p", "9"], "no row of partition 'p' is in step 9 of task 'train'"),
        (["drop", "q", "--yes"], "there is no partition 'q'"),
        (["claims", "p", "trian"], "'trian'"),
        (["claims", "q"], "there is no partition 'q'"),
        (["reset", "p", "trian", "--dead"], "'trian'"),
        (["sample", "p", "unknown"], "partition 'p' has no sample 'unknown'"),
        (["dead-letters", "p", "trian"], "'trian'"),
        (["reset", "p", "trian", "--all"], "'trian'"),
        (["reset", "p", "train", "a", "aa"], "no sample 'aa'; nothing was reset"),
        (["peek", "q"], "there is no partition 'q'"),
    ],
)
def test_an_unknown_sample_or_task_exits_with_1_and_its_name(troubled: str, command: list[str], said: str) -> None:
    code, text = run(*command, "-s", troubled)
    assert (code, said in text) == (1, True)
    assert not re.search(r"[a-z][A-Z]\w* at ", text), "the output of a command names an RPC"


def test_a_whole_task_is_reset_only_with_all(troubled: str) -> None:
    with connect(troubled) as client:
        held = client.claim("p", "train", ["x"], 1)
        code, text = run("reset", "p", "train", "-s", troubled)
        assert (code, "--all" in text) == (2, True)
        assert run("reset", "p", "train", "--dead", "--all", "-s", troubled)[0] == 2
        assert run("reset", "p", "train", "a", "--all", "-s", troubled)[0] == 2
        assert run("reset", "p", "train", "--all", "-s", troubled) == (0, "rows reset: 2, claims fenced: 1\n")
        with pytest.raises(ClaimFencedError):
            held.commit()
