"""A bit that flips in a file between two lives is told, by what it costs, and never served."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.integration.failpoints.clients import value_of
from tests.integration.failpoints.lives import Lives

from dataplane_client.client import connect

ROWS = [f"row-{number}" for number in range(10)]
VALUE = bytes(value_of("row-4"))
WITHOUT_4 = ROWS[:4] + ROWS[5:]
Pick = Callable[[bytes], int]


def put_rows(lives: Lives) -> None:
    """A life that puts ROWS one by one, and is killed."""
    assert lives.begin() is None
    with connect(lives.address, transport="shm") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        for row in ROWS:
            client.put_samples([row], "p", {"x": [value_of(row)]})
        lives.kill()


def served(lives: Lives) -> list[str]:
    """Which of ROWS there are, with the bytes that were put."""
    with connect(lives.address) as client:
        described = client.partition("p")
        there = [row for row in client.list_samples("p").meta.sample_ids if row in ROWS]
        values = client.get_samples(there, "p", ["x"])["x"].unbind()
        assert all(torch.equal(value, value_of(row)) for row, value in zip(there, values, strict=True))
        assert described.rows == described.rows_put_total - sum(described.removed_rows.values())
    return there


def flip(folder: Path, kind: str, pick: Pick) -> None:
    """Flip a bit of the newest file of a kind."""
    path = max(folder.glob(kind))
    data = bytearray(path.read_bytes())
    place = pick(bytes(data))
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("kind", "pick", "words", "left"),
    [
        ("log-*", lambda data: data.index(b"row-4"), r"log-0{20}: .* byte \d+: .* record \d+ is", ROWS[:4]),
        ("log-*", lambda data: 30, "log-0{20}: a segment whose header is damaged", None),
        ("arena", lambda data: data.index(VALUE), "'x' of sample 'row-4' in 'p'", WITHOUT_4),
    ],
    ids=["record", "header", "value"],
)
def test_damage_is_refused_in_words_and_accepted_for_its_price(
    start: Callable[[str], Lives],
    tmp_path: Path,
    durability: str,
    kind: str,
    pick: Pick,
    words: str,
    left: list[str] | None,
) -> None:
    lives = start(durability)
    put_rows(lives)
    flip(tmp_path / "data", kind, pick)
    for _ in range(2):  # a refusal changes nothing
        assert lives.begin() == 1
        assert re.search(words, lives.events("start_failed")[-1]["why"])
    assert lives.begin("--accept-loss") == (1 if left is None else None), lives.log
    for _ in range(0 if left is None else 2):
        assert served(lives) == left
        lives.kill()
        assert lives.begin() is None
