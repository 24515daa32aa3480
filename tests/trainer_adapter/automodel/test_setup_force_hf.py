"""When the Hugging Face implementation is forced, from the adapters of the registered models.

nemo_automodel need not be installed: a package of its name, with a registry and models of its layout, is imported
instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_adapter.automodel.models.force_hf import force_hf_with_tensor_parallelism
from trainer_adapter.automodel.packages import is_installed
from trainer_adapter.automodel.setup import _maybe_set_force_hf

MIXIN = "import abc\nclass MixinStateDictAdapter(abc.ABC):\n    @abc.abstractmethod\n"
ADAPTERS = {
    "able": "class AbleStateDictAdapter:\n    def convert_single_tensor_to_hf(self): ...\n",
    "unable": "class UnableStateDictAdapter: ...\n",
    "abstract": f"{MIXIN}    def convert_single_tensor_to_hf(self): ...\n",
    "first_unable": "class AStateDictAdapter: ...\nclass BStateDictAdapter:\n    convert_single_tensor_to_hf = print\n",
    "nameless": "class Translator: ...\n",
    "broken": "import there_is_no_such_module\n",
    "without": None,
}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registered class "<Name>ForCausalLM" for each of ADAPTERS."""
    real = {name: sys.modules.pop(name) for name in imported()}
    package = tmp_path / "nemo_automodel"
    (package / "_transformers").mkdir(parents=True)
    (package / "__init__.py").touch()  # else the real one, where it is installed, comes first
    lines = ["from types import SimpleNamespace", "ModelRegistry = SimpleNamespace(model_arch_name_to_cls={})"]
    for name, adapter in ADAPTERS.items():
        (package / name).mkdir()
        (package / name / "model.py").write_text("class Model: ...\n")
        if adapter is not None:
            (package / name / "state_dict_adapter.py").write_text(adapter)
        lines.append(f"from nemo_automodel.{name}.model import Model")
        lines.append(f"ModelRegistry.model_arch_name_to_cls['{name}'] = Model")
    (package / "_transformers" / "registry.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in imported():
        del sys.modules[name]
    sys.modules.update(real)


def imported() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "nemo_automodel"]


def model_config(*architectures: str) -> Any:
    return SimpleNamespace(architectures=list(architectures))


UNSAID: tuple[dict[str, Any], ...] = ({}, {"force_hf": None})


@pytest.mark.usefixtures("registry")
def test_nothing_changes_for_models_that_can_be_sent() -> None:
    for name in ("able", "nameless", "broken", "without", "not_registered"):
        for before in (*UNSAID, {"force_hf": False}):
            kwargs = dict(before)
            _maybe_set_force_hf(kwargs, model_config(name))
            assert kwargs == before, name


@pytest.mark.usefixtures("registry")
def test_models_that_cannot_be_sent_are_replaced_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("unable", "abstract", "first_unable"):
        for before in UNSAID:
            kwargs = dict(before)
            _maybe_set_force_hf(kwargs, model_config(name))
            assert kwargs == {"force_hf": True}, name
            assert f"WARNING: the state-dict adapter of {name} has no" in capsys.readouterr().out


@pytest.mark.usefixtures("registry")
def test_forbidding_the_replacement_of_such_a_model_is_an_error_that_tells_the_way_out() -> None:
    with pytest.raises(RuntimeError, match=r"force_hf=False.*unable.*automodel_kwargs\.force_hf=true or file an issue"):
        _maybe_set_force_hf({"force_hf": False}, model_config("unable"))


@pytest.mark.parametrize("architectures", [None, []])
@pytest.mark.usefixtures("registry")
def test_a_configuration_without_architectures_changes_nothing(architectures: list[str] | None) -> None:
    kwargs: dict[str, Any] = {}
    _maybe_set_force_hf(kwargs, SimpleNamespace(architectures=architectures))
    assert kwargs == {}


def test_a_model_that_is_forced_already_needs_no_registry() -> None:
    kwargs = {"force_hf": True}
    _maybe_set_force_hf(kwargs, model_config("unable"))
    assert kwargs == {"force_hf": True}


@pytest.mark.skipif(is_installed(), reason="nemo_automodel is installed")
def test_where_there_is_no_registry_its_extra_is_asked_for() -> None:
    with pytest.raises(ImportError, match=r"needs nemo_automodel: pip install 'rl-dataplane\[automodel\]'"):
        _maybe_set_force_hf({}, model_config("able"))


@pytest.mark.parametrize(
    ("architecture", "kwargs", "expected"),
    [
        ("LlamaForCausalLM", {}, {"force_hf": True}),
        ("Qwen2ForCausalLM", {"force_hf": None}, {"force_hf": True}),
        ("Qwen2ForCausalLM", {"force_hf": True}, {"force_hf": True}),
        ("Qwen3ForCausalLM", {}, {}),
        ("Qwen3ForCausalLM", {"force_hf": False}, {"force_hf": False}),
    ],
)
def test_models_with_wrong_gradients_between_tensor_parallel_ranks_are_replaced(
    architecture: str, kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    force_hf_with_tensor_parallelism(kwargs, model_config(architecture))
    assert kwargs == expected


def test_forbidding_that_replacement_is_an_error_that_tells_the_way_out() -> None:
    with pytest.raises(RuntimeError, match=r"force_hf=False.*Llama.*wrong gradient.*kwargs\.force_hf=true or"):
        force_hf_with_tensor_parallelism({"force_hf": False}, model_config("LlamaForCausalLM"))
