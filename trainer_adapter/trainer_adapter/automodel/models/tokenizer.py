"""The tokenizer or processor of a worker, from `tokenizer` in the policy's configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_adapter.automodel.config import required
from trainer_adapter.automodel.packages import from_package, is_installed, require_transformers
from trainer_adapter.automodel.rank import report

_PASSTHROUGH = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_SHARED_ATTRIBUTES = (
    "pad_token",
    "eos_token",
    "bos_token",
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "name_or_path",
)


def get_tokenizer(tokenizer_config: Mapping[str, Any], get_processor: bool = False) -> Any:
    """Load the tokenizer, or with get_processor the processor around it, with the same tokens.

    Uses NeMo Automodel's tokenizers if installed, otherwise those of transformers. A tokenizer without a padding token
    pads with end-of-sequence. Code that comes with the tokenizer is run: load only names that you trust.

    Raises AssertionError if chat_template_kwargs is not a dictionary, ImportError naming the extra to install.
    """
    name = required({"tokenizer": tokenizer_config}, "tokenizer.name")
    processor = None
    if get_processor:
        auto_processor = require_transformers().AutoProcessor
        processor = auto_processor.from_pretrained(name, trust_remote_code=True, use_fast=True)
    tokenizer = _load(name) if processor is None else processor.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    _set_chat_template([tokenizer] if processor is None else [tokenizer, processor], tokenizer_config)
    if processor is None:
        return tokenizer
    for attribute in _SHARED_ATTRIBUTES:
        setattr(processor, attribute, getattr(tokenizer, attribute))
    return processor


def _load(name: str) -> Any:
    plain = require_transformers().AutoTokenizer
    if not is_installed():
        return plain.from_pretrained(name, trust_remote_code=True)
    tokenizers = from_package("NeMoAutoTokenizer")
    tokenizer = tokenizers.from_pretrained(name, trust_remote_code=True)
    if tokenizer.pad_token_id == 0 and plain.from_pretrained(name, trust_remote_code=True).pad_token is None:
        tokenizer.pad_token = None  # the package pads with token 0 if there is no pad token; token 0 may be a word
    return tokenizer


def _set_chat_template(holders: list[Any], config: Mapping[str, Any]) -> None:
    template, kwargs = _chat_template(config), config.get("chat_template_kwargs")
    if not isinstance(kwargs, dict | None):
        raise AssertionError(f"chat_template_kwargs should be a dictionary, not {type(kwargs).__name__}")
    for holder in holders:
        if template is not None:
            holder.chat_template = template
        if kwargs is not None:
            holder.apply_chat_template = functools.partial(holder.apply_chat_template, **kwargs)


def _chat_template(config: Mapping[str, Any]) -> str | None:
    """None: the tokenizer's own."""
    if "chat_template" not in config:
        report("No chat template provided, using tokenizer's default")
        return None
    if config["chat_template"] is None:
        report("Using passthrough chat template")
        return _PASSTHROUGH
    template: str = os.fspath(config["chat_template"])
    if template.lower() == "default":
        report("Using tokenizer's default chat template")
        return None
    if not template.endswith(".jinja"):
        report("Using custom chat template")
        return template
    report(f"Loading chat template from file: {template}")
    return Path(template).read_text(encoding="utf-8")
