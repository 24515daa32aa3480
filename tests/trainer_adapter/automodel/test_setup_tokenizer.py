"""Tokenizers and processors as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Wav2Vec2FeatureExtractor, Wav2Vec2Processor

from trainer_adapter.automodel.setup import get_tokenizer

MESSAGES = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
OWN = "{% for message in messages %}<{{ message['role'] }}>{% endfor %}{{ mood }}"


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer without a padding token, and the processor around it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    begin, end = "<s>", "</s>"
    words = Tokenizer(WordLevel({begin: 0, end: 1, "a": 2}, unk_token=begin))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=begin, eos_token=end)
    tokenizer.chat_template = OWN
    Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def rendered(tokenizer: Any, **kwargs: Any) -> str:
    text: str = tokenizer.apply_chat_template(MESSAGES, tokenize=False, **kwargs)
    return text


@pytest.mark.parametrize(
    ("config", "text", "notice"),
    [
        ({}, "<user><assistant>", "No chat template provided, using tokenizer's default"),
        ({"chat_template": "Default"}, "<user><assistant>", "Using tokenizer's default chat template"),
        ({"chat_template": None}, "abc", "Using passthrough chat template"),
        ({"chat_template": "{{ messages[0]['content'] }}!"}, "ab!", "Using custom chat template"),
    ],
)
def test_the_chat_template_is_the_configured_one(
    name: str, capsys: pytest.CaptureFixture[str], config: dict[str, Any], text: str, notice: str
) -> None:
    assert rendered(get_tokenizer({"name": name, **config})) == text
    assert notice in capsys.readouterr().out


@pytest.mark.parametrize("kind", [str, Path])
def test_a_chat_template_is_read_from_a_jinja_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[str | Path]
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages | length }} messages")
    assert rendered(get_tokenizer({"name": name, "chat_template": kind(template)})) == "2 messages"
    assert f"Loading chat template from file: {template}" in capsys.readouterr().out


@pytest.mark.parametrize(("kwargs", "text"), [({"mood": "!"}, "<user><assistant>!"), (None, "<user><assistant>")])
def test_arguments_of_the_chat_template_are_given_to_every_call(
    name: str, kwargs: dict[str, Any] | None, text: str
) -> None:
    assert rendered(get_tokenizer({"name": name, "chat_template_kwargs": kwargs})) == text


def test_a_processor_carries_the_tokens_and_the_template_of_its_tokenizer(name: str) -> None:
    config = {"name": name, "chat_template": OWN, "chat_template_kwargs": {"mood": "!"}}
    processor: Any = get_tokenizer(config, get_processor=True)
    assert (processor.pad_token, processor.pad_token_id, processor.bos_token_id) == ("</s>", 1, 0)
    assert processor.name_or_path == processor.tokenizer.name_or_path
    assert rendered(processor) == rendered(processor.tokenizer) == "<user><assistant>!"
