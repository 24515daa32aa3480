"""What the commands show on narrow and wide screens, in colour and without, and of names that would act on a
terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from tests.client.cli.reading import run, shown_on_terminal

from dataplane_client import connect
from dataplane_server.testing import running_server

LONG = "validation_aime_2024"
TASK = "reference_logprobs"


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    """A server with long names, and a row whose delivery failed for a long reason."""
    with running_server(memory_bytes=64 << 20) as address, connect(address, client_name="rollout-worker-17") as client:
        client.register_partition(LONG, ["input_ids", "x"], 0, ["prev_lp", TASK], max_deliveries=2)
        client.put_samples([f"prompt-{row}" for row in range(1200)], LONG, {"x": torch.zeros(1200, 4)})
        client.claim(LONG, TASK, ["x"], 1).release(reason="CUDA out of memory " * 10)
        yield address


COMMANDS = {
    "status": ["status"],
    "top": ["top", "-n", "1"],
    "describe": ["describe", LONG],
    "sample": ["sample", LONG, "prompt-0"],
}


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_the_screen_and_no_name_or_number_is_cut(busy: str, command: str, columns: int) -> None:
    code, text = run(*COMMANDS[command], "-s", busy, COLUMNS=str(columns))
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    assert columns < 140 or "not shown" not in text
    rows, wide_rows = (rows_of(TASK, shown) for shown in (text, run(*COMMANDS[command], "-s", busy, COLUMNS="240")[1]))
    assert len(rows) == len(wide_rows)
    assert all(row[:3] == wide_row[:3] for row, wide_row in zip(rows, wide_rows, strict=True))


def test_a_reason_in_chinese_is_folded_and_no_word_of_it_is_lost() -> None:
    reason = "数值溢出: 损失函数返回了无效的数值, 因为奖励模型没有返回任何有效的结果"
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", ["x"], 0, ["train"], max_deliveries=1)
        client.put_samples(["a"], "p", {"x": [0]})
        client.claim("p", "train", ["x"], 1).release(reason=reason)
        text = run("dead-letters", "p", "train", "-s", address, COLUMNS="60")[1]
    assert re.sub(r"\s", "", reason) in re.sub(r"\s", "", text)


def rows_of(name: str, text: str) -> list[list[str]]:
    """The rows of a name, without its shares of the time, which move between one look and the next."""
    return [line.split() for line in text.splitlines() if line.lstrip().startswith(name) and "%" not in line]


COLOURS = re.compile(r"\x1b\[[\d;]*3[1-7][\d;]*m")


def test_a_terminal_has_colours_unless_they_are_not_wanted(busy: str) -> None:
    assert COLOURS.search(shown_on_terminal("status", "-s", busy))
    plain = shown_on_terminal("status", "-s", busy, NO_COLOR="1")
    assert not COLOURS.search(plain)
    assert "healthy" in plain
    assert "\x1b" not in run("status", "-s", busy, TERM="xterm-256color")[1]


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202etrain\n"


def test_names_and_reasons_cannot_act_on_the_terminal() -> None:
    with running_server(memory_bytes=1 << 20) as address, connect(address, client_name=HOSTILE) as client:
        client.register_partition(HOSTILE, [HOSTILE], 0, [HOSTILE], max_deliveries=1)
        client.put_samples([HOSTILE], HOSTILE, {HOSTILE: torch.zeros(1, 1)}, [{HOSTILE: HOSTILE}])
        client.claim(HOSTILE, HOSTILE, [HOSTILE], 1).release(reason=HOSTILE)
        for command in (
            ["status"],
            ["top", "-n", "1"],
            ["describe", HOSTILE],
            ["sample", HOSTILE, HOSTILE],
            ["sample", HOSTILE, f"{HOSTILE}?"],
            ["dead-letters", HOSTILE, HOSTILE],
            ["dead-letters", HOSTILE, f"{HOSTILE}?"],
        ):
            text = run(*command, "-s", address)[1]
            assert r"\x1b[2J" in text
            assert all(char.isprintable() or char == "\n" for char in text), command
