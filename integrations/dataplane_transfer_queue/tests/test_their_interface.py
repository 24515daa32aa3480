"""Every name that TransferQueue exports is here, with its parameters; what is missing of its classes is listed.

TransferQueue is read and not imported. `pytest -s` prints the table.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
from pathlib import Path

import pytest

import dataplane_transfer_queue as ours
from dataplane_transfer_queue._not_served import NOT_SERVED

THEIRS = next(
    (found for found in importlib.metadata.distributions(name="TransferQueue") if found.version == ours.__version__),
    None,
)
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(THEIRS is None, reason=f"TransferQueue {ours.__version__} is not installed"),
]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NOT_HERE = {
    "BaseSampler": {"clear_cache", "has_cached_result", "load_checkpoint", "save_checkpoint"},
    "SeqlenBalancedSampler": {"clear_cache", "load_checkpoint", "save_checkpoint"},
    "StreamingDataLoader": {"get_buffer", "reset", "step"},
    "StreamingDataset": {"reset", "step"},
    **{name: set(members) for name, members in NOT_SERVED.items()},
}
"""Public members of their classes that ours lack, less the `async_` twins."""
OTHER_PARAMETERS = {"BatchMeta", "StorageKeyNotFoundError", "StreamingDataLoader", "TransferQueueClient"}
"""Classes that users do not construct, or that refuse to be."""


def definitions() -> dict[str, Definition]:
    """What their files define at the top, by name."""
    assert THEIRS is not None
    files = [Path(str(each.locate())) for each in THEIRS.files or () if each.parts[0] == "transfer_queue"]
    trees = [ast.parse(file.read_text()) for file in sorted(files) if file.suffix == ".py"]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, Definition)}


def exported() -> list[str]:
    assert THEIRS is not None
    tree = ast.parse(Path(str(THEIRS.locate_file("transfer_queue/__init__.py"))).read_text())
    listed = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    return [str(node.value) for node in ast.walk(listed) if isinstance(node, ast.Constant)]


def parameters(node: Definition) -> list[str]:
    """Names of parameters, those by keyword only sorted; of a class those of its constructor."""
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if made:
            return parameters(made[0])[1:]
        return [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
    return [each.arg for each in node.args.args] + sorted(each.arg for each in node.args.kwonlyargs)


def our_parameters(name: str) -> list[str]:
    found = list(inspect.signature(getattr(ours, name)).parameters.values())
    keywords = sorted(each.name for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in found if each.kind is not inspect.Parameter.KEYWORD_ONLY] + keywords


def members(node: Definition) -> set[str]:
    return {
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith(("_", "async_"))
    }


def test_every_name_is_here_with_its_parameters() -> None:
    theirs, missing, other = definitions(), [], []
    for name in exported():
        if not hasattr(ours, name):
            missing.append(name)
            continue
        if name not in theirs:  # a twin that is assigned
            continue
        wanted, found = parameters(theirs[name]), our_parameters(name)
        print(f"{name:26} {'same' if wanted == found else f'{wanted} here {found}'}")  # noqa: T201 - the table
        if wanted != found and name not in OTHER_PARAMETERS:
            other.append((name, wanted, found))
    assert (missing, other) == ([], [])


def test_the_members_that_are_not_here_are_those_of_the_list() -> None:
    theirs = definitions()
    lacking = {
        name: {member for member in members(theirs[name]) if not hasattr(getattr(ours, name), member)}
        for name in exported()
        if isinstance(theirs.get(name), ast.ClassDef)
    }
    for name, absent in lacking.items():
        print(f"{name:26} {len(absent)} of {len(members(theirs[name]))} not here: {', '.join(sorted(absent))}")  # noqa: T201
    assert {name: absent for name, absent in lacking.items() if absent} == NOT_HERE
