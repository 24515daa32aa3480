"""Generate docs/api.md from docstrings of client and integrations: `python scripts/document_api.py [--check]`.

It reads the sources without importing them. --check writes nothing and exits with 1 if the page differs.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "client" / "dataplane_client"
INTEGRATIONS = ROOT / "integrations"
PAGE = ROOT / "docs" / "api.md"

_WIDTH = 110
_HEAD = """\
# API

`scripts/document_api.py` generates this page from docstrings of `client/dataplane_client` and `integrations`; `make
test` compares them. `dataplane_client.aio` has the same verbs as coroutines.

Times are in seconds. Every verb takes `timeout_s` (None: the client's default, 60 s) and raises an error of
`dataplane_client.errors` within that time. A call that raises has changed nothing on the server, unless its error says
that this is unknown. N is the number of rows of a call.
"""


Definition: TypeAlias = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Section:
    """A part of the page: the docstring of a class or module, and its members."""

    title: str
    file: str
    owner: str = ""
    names: tuple[str, ...] = ()
    root: Path = CLIENT

    def lines(self) -> Iterator[str]:
        tree = ast.parse((self.root / self.file).read_text())
        owner = _named(tree, self.owner) if self.owner else tree
        yield f"## {self.title}\n"
        if self.owner and (text := _docstring(owner)) != "Part of the client.":
            yield f"{text}\n"
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and self._shows(node):
                yield from _entry(node)

    def _shows(self, node: Definition) -> bool:
        """Whether a member belongs on the page: a named one, or without names any public one that says what it does."""
        return node.name in self.names if self.names else node.name[0] != "_" and bool(ast.get_docstring(node))


SECTIONS = (
    Section("Connect", "_verbs/_sync/client.py", names=("connect", "connect_later")),
    Section("The client", "_verbs/_sync/client.py", "DataPlaneClient", ("close",)),
    Section("Partitions and the server", "_verbs/_sync/partition_verbs.py", "PartitionVerbs"),
    Section("Samples", "_verbs/_sync/sample_verbs.py", "SampleVerbs"),
    Section("Puts that travel together", "_verbs/_sync/batching.py", "Batching"),
    Section("A put that is held", "_verbs/_sync/batching.py", "PendingPut"),
    Section("Listings", "_verbs/_sync/listing_verbs.py", "ListingVerbs"),
    Section("Claims and groups", "_verbs/_sync/claim_verbs.py", "ClaimVerbs"),
    Section("Claim", "_verbs/_sync/claim.py", "Claim"),
    Section("Group", "_verbs/_sync/group.py", "Group"),
    Section("KVBatchMeta", "records/meta.py", "KVBatchMeta"),
    Section("BatchedDataDict", "batched_data_dict/_batch.py", "BatchedDataDict"),
    Section("ClaimLoader", "loader/_loader.py", "ClaimLoader", ("__init__", "close")),
    Section("LoadedBatch", "loader/_batch.py", "LoadedBatch"),
    Section("Padded to jagged", "_values/codec.py", names=("pack_per_token_field", "pack_jagged_fields")),
    Section("Jagged to padded", "batched_data_dict/_materialize.py", names=("materialize",)),
    Section("Types of objects", "_values/registered_types.py", names=("register_type",)),
    Section("Functions with NeMo-RL's names", "_verbs/_sync/columns.py"),
    Section("Policies", "records/tasks.py", names=("TaskPolicy",)),
    Section("When a partition takes new rows", "records/flow.py", names=("FlowPolicy", "DrawBand")),
    Section("Descriptions", "records/descriptions.py"),
    Section("Counts of the last minute", "records/recent.py"),
    Section("Groups of a claim, and rows of a draw", "records/grants.py", names=("ClaimedGroup", "SampledRows")),
    Section("Pages and lists", "records/listings.py"),
    Section("RolloutRows", "dataplane_rollout/_rows.py", "RolloutRows", ("put",), INTEGRATIONS),
    Section("Rollouts of vLLM", "dataplane_rollout/_vllm.py", root=INTEGRATIONS),
    Section("Rollouts of transformers", "dataplane_rollout/_generate.py", root=INTEGRATIONS),
    Section("Rollouts of OpenAI-style servers", "dataplane_rollout/_completions.py", root=INTEGRATIONS),
    Section("Message logs", "dataplane_rollout/_messages.py", root=INTEGRATIONS),
    Section("TRL's rollout worker", "dataplane_trl/_worker.py", names=("DataPlaneRolloutWorker",), root=INTEGRATIONS),
    Section(
        "Rollouts for TRL",
        "dataplane_trl/_rollouts.py",
        names=("RolloutSample", "register_rollouts", "put_rollouts", "add_rollouts"),
        root=INTEGRATIONS,
    ),
    Section("TRL's rollout_func", "dataplane_trl/_rollout_func.py", root=INTEGRATIONS),
    Section(
        "slime's data source",
        "dataplane_slime/_data_source.py",
        names=("DataPlaneDataSource", "note_rollout", "convert_samples_to_train_data"),
        root=INTEGRATIONS,
    ),
    Section("NeMo-RL's client", "dataplane_nemo_rl/_adapter.py", names=("DataPlaneAdapter",), root=INTEGRATIONS),
    Section("NeMo-RL's factory", "dataplane_nemo_rl/_factory.py", root=INTEGRATIONS),
    Section("Errors", "errors.py"),
)


def main() -> None:
    page = "\n".join([_HEAD, *(line for section in SECTIONS for line in section.lines())])
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif PAGE.read_text() != page:
        sys.exit("docs/api.md is stale: run scripts/document_api.py")


def _named(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _entry(node: Definition) -> Iterator[str]:
    signature = _class_line(node) if isinstance(node, ast.ClassDef) else _signature(node)
    yield f"### {node.name}\n"
    yield f"```py\n{signature}\n```\n"
    yield f"{_docstring(node)}\n"


def _class_line(node: ast.ClassDef) -> str:
    bases = ", ".join(map(ast.unparse, node.bases))
    fields = [ast.unparse(line) for line in node.body if isinstance(line, ast.AnnAssign)]
    return "\n    ".join([f"class {node.name}({bases})" if bases else f"class {node.name}", *fields])


def _signature(node: ast.FunctionDef) -> str:
    """The head of a function, on one line if it fits, else with a line for each parameter."""
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else ''}"
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({ast.unparse(arguments)}){answer}"
    return line if len(line) <= _WIDTH else "\n".join(_parameter_lines(node, answer))


def _parameter_lines(node: ast.FunctionDef, answer: str) -> Iterator[str]:
    arguments = node.args
    yield f"{node.name}("
    plain = len(arguments.args) - len(arguments.defaults)
    defaults = [None] * plain + [*arguments.defaults]
    for parameter, default in zip(arguments.args, defaults, strict=True):
        yield f"    {_parameter(parameter, default)},"
    if arguments.kwonlyargs:
        yield "    *,"
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield f"    {_parameter(parameter, default)},"
    yield f"){answer}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(parameter) + ("" if default is None else f" = {ast.unparse(default)}")


def _docstring(node: Definition | ast.Module) -> str:
    """The docstring as Markdown."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    return "\n\n".join(_block(block) for block in text.split("\n\n"))


def _block(block: str) -> str:
    """A paragraph. An indented one is code; one with indented lines is a list, whose items begin without indent."""
    if block.startswith("    "):
        return f"```py\n{textwrap.dedent(block)}\n```"
    if "\n    " in block:
        lines = (f"  {line.strip()}" if line.startswith("    ") else f"- {line}" for line in block.splitlines())
        return "\n".join(lines)
    return block


if __name__ == "__main__":
    main()
