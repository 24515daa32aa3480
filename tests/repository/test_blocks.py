"""The blocks of docs/*.md that are not run say their language and hold in it: commands are accepted, data is parsed.

test_pages.py runs the blocks in `python` and compares the `text` that they print. `py` needs more than a server.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from scripts.page_blocks import ROOT, programs_of
from typer.main import get_command

from dataplane_client.cli._app import app
from dataplane_server.cli import _parser

PAGES = sorted((ROOT / "docs").rglob("*.md"))
OURS = {"dataplane_client", "dataplane_server", "trainer_adapter"}
COMMAND = re.compile(r"(?:^|; | -- |-instrument )(dataplane(?:-server)?)(?= )([^|>;&#]*)")
"""A command of ours in a line: at its start, after another one, or run by another program."""
EXAMPLE = ROOT / "examples" / "first_pipeline"


def blocks(page: Path) -> Iterator[Token]:
    return (token for token in tokens(page) if token.type == "fence")


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def check_python(code: str) -> None:
    """It compiles, and what it imports of ours is there."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def check_shell(code: str) -> None:
    subprocess.run(["bash", "-n"], input=code, text=True, check=True)
    check_console(code)


def check_console(text: str) -> None:
    """Every command line of ours is accepted, as far as its words go."""
    for line in text.replace("\\\n", "").splitlines():
        for program, words in COMMAND.findall(line.removeprefix("$ ")):
            check_command(program, shlex.split(words))


def check_command(program: str, words: list[str]) -> None:
    if {"--version", "--help"} & set(words):
        return
    if program == "dataplane-server":
        _parser().parse_args(words)
        return
    commands = commands_of_ours()
    with commands.make_context(program, words) as context:
        name, command, rest = commands.resolve_command(context, [*context._protected_args, *context.args])
        command.make_context(name, rest, parent=context)


@cache
def commands_of_ours() -> Any:
    return get_command(app)


def check_nothing(text: str) -> None:
    """Output, a picture, settings of others, or what another test reads."""


CHECKS: dict[str, Callable[[str], object]] = {
    "": check_nothing,
    "console": check_console,
    "hex": check_nothing,
    "json": json.loads,
    "promql": promql_parser.parse,
    "py": check_python,
    "python": check_nothing,
    "sh": check_shell,
    "text": check_nothing,
    "yaml": yaml.safe_load,
}
UNCHECKED = {"api.md"}  # its blocks are signatures, which come from the code


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in UNCHECKED], ids=lambda page: page.stem)
def test_every_block_of_a_page_says_a_language_and_holds_in_it(page: Path) -> None:
    assert [token.map for token in tokens(page) if token.type == "code_block"] == []  # indented: it says no language
    for block in blocks(page):
        CHECKS[block.info](block.content)
    printed = [text for program in programs_of(page) for _, text in program if text]
    assert sum(block.info == "text" for block in blocks(page)) == len(printed)  # what no program prints is no `text`


def test_every_command_that_a_page_names_exists() -> None:
    for page in PAGES:
        named = set(re.findall(r"`dataplane ([a-z][a-z-]*)", page.read_text()))
        assert named <= commands_of_ours().commands.keys(), page


def test_the_first_pipeline_shows_its_files_whole() -> None:
    shown = [block.content for block in blocks(ROOT / "docs" / "first-pipeline.md") if block.info == "py"]
    assert sorted(shown) == sorted(file.read_text() for file in EXAMPLE.glob("*.py"))
