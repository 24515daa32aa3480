"""A causal language model small enough to learn arithmetic on one CPU core in a minute, and its tokenizer.

Both are created here and written in the Hugging Face layout, so `from_pretrained` loads them like a downloaded model.
The model has the shape of Qwen2 with tied embeddings. The tokenizer is a byte-level BPE trained on the given texts. Any
string encodes and decodes back unchanged. Every digit is one token, so the model reads numbers digit by digit, as it
adds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.logging import disable_progress_bar

from settings import ModelSettings
from special_tokens import bos_id, eos_id, pad_id

BOS, EOS, PAD = "<s>", "</s>", "<pad>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with at most `vocab_size` entries; `encode` adds no special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def make_model(tokenizer: PreTrainedTokenizerFast, shape: ModelSettings, seed: int) -> Qwen2ForCausalLM:
    """Make a model with random fp32 weights, the same for the same seed. Seeds torch's global generator."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        initializer_range=shape.initializer_range,
        bos_token_id=bos_id(tokenizer),
        eos_token_id=eos_id(tokenizer),
        pad_token_id=pad_id(tokenizer),
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config)


def save_tiny_model(folder: Path, texts: Iterable[str], shape: ModelSettings, seed: int) -> None:
    """Write config, safetensors weights and tokenizer into `folder`; create it if absent."""
    disable_progress_bar()
    tokenizer = train_tokenizer(texts, shape.vocab_size)
    make_model(tokenizer, shape, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _declared_tokenizer(folder: Path) -> Any:
    """The tokenizer that the folder declares.

    AutoTokenizer looks at the model's type first: for a model in the shape of Qwen2 it would replace the normalizer,
    pre-tokenizer and special tokens of `tokenizer.json` with Qwen2's.
    """
    declared = get_tokenizer_config(str(folder), local_files_only=True).get("tokenizer_class")
    generic = declared in {"TokenizersBackend", "PreTrainedTokenizerFast"}
    return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(folder, local_files_only=True)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of any local causal language model, without network access.

    Raises ValueError if the tokenizer has no end-of-sequence token: a rollout could not end.
    A tokenizer without a padding token pads with end-of-sequence; lengths distinguish padding from text, ids never do.
    """
    tokenizer: PreTrainedTokenizerFast = _declared_tokenizer(folder)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"model {folder}: its tokenizer has no end-of-sequence token; rollouts need one to end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load any local causal language model, in fp32 and evaluation mode, and its tokenizer; see load_tokenizer."""
    tokenizer = load_tokenizer(folder)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model.eval(), tokenizer
