"""Shared by the tests of the worker: a tiny model on disk, configurations, a batch, and the cases of real ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed
from tests.rank_pool import RankPool
from tests.ranks import WarningAction
from tests.trainer_adapter.automodel.setup_cases import SHAPE, policy_config, whole_weights
from tokenizers import Tokenizer, models
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.losses import ClippedPolicyGradientLoss
from trainer_adapter.worker import AutomodelPolicyWorker

LENGTHS = [3, 9, 17, 5, 30, 12, 24, 7]
WIDTH = 32
EOS, PAD = 1, 2
TEMPERATURE = 0.7
MAX_GRAD_NORM = 0.05
LEARNING_RATE = 0.5
PACKINGS = ("none", "dynamic", "sequence")
each_packing = pytest.mark.parametrize(
    "packing", ["sequence", *(pytest.param(packing, marks=pytest.mark.long) for packing in PACKINGS[:2])]
)


Tensors = dict[str, torch.Tensor]


class Layout(NamedTuple):
    dp: int = 1
    tp: int = 1
    cp: int = 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.cp

    def __str__(self) -> str:
        return f"dp{self.dp}_tp{self.tp}_cp{self.cp}"


TWO_RANKS = (Layout(dp=2), Layout(tp=2), Layout(cp=2))
LAYOUTS = (Layout(), *TWO_RANKS, Layout(dp=2, tp=2), Layout(dp=2, cp=2), Layout(tp=2, cp=2))


# --- a model and its rows ---


def save_model(folder: Path, kind: str = "qwen3", **settings: Any) -> None:
    """Random weights far from uniform, and a tokenizer."""
    disable_progress_bar()
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **{**SHAPE, "head_dim": 8, "tie_word_embeddings": True, **settings})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {"<unk>": 0, "<eos>": EOS, "<pad>": PAD} | {f"w{n}": n for n in range(3, SHAPE["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106  # a token, not a secret
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")  # noqa: S106
    fast.save_pretrained(folder)


def batch() -> BatchedDataDict[Any]:
    """Eight rows of different lengths, right-padded; the sixth one does not count."""
    generator = torch.Generator().manual_seed(5)
    shape = (len(LENGTHS), WIDTH)
    lengths = torch.tensor(LENGTHS)
    is_token = torch.arange(WIDTH) < lengths[:, None]
    ids = torch.randint(3, SHAPE["vocab_size"], shape, generator=generator)
    sample_mask = torch.ones(len(LENGTHS))
    sample_mask[5] = 0.0
    return BatchedDataDict(
        input_ids=torch.where(is_token, ids, PAD),
        input_lengths=lengths,
        token_mask=(is_token & (torch.arange(WIDTH) % 3 != 2)).float(),
        sample_mask=sample_mask,
        prev_logprobs=-4.0 + torch.rand(shape, generator=generator),
        generation_logprobs=-4.0 + torch.rand(shape, generator=generator),
        advantages=torch.randn(shape, generator=generator),
    )


def shard(rank: int, layout: Layout) -> BatchedDataDict[Any]:
    """The rows of the data-parallel rank that a global rank belongs to."""
    return batch().chunk(rank // (layout.cp * layout.tp), layout.dp)


def config(model: Path, layout: Layout, packing: str = "none", backend: str = "transformers", **changes: Any) -> Any:
    sizes = {"tensor_parallel_size": layout.tp, "context_parallel_size": layout.cp}
    basis = policy_config(model, model_backend=backend, context_parallel_attention="gathered", **sizes)
    # DTensor plans every operation again for every shape, which takes seconds: tensor-parallel passes get few shapes.
    few_shapes = layout.tp > 1
    tokens, rounding = {"train_mb_tokens": 36, "logprob_mb_tokens": 36 if few_shapes else 64}, 16 if few_shapes else 4
    return {
        **basis,
        "tokenizer": {"name": str(model)},
        "seed": None,
        "max_grad_norm": MAX_GRAD_NORM,
        "train_global_batch_size": len(LENGTHS),
        "train_micro_batch_size": 2,
        "logprob_batch_size": 2 if few_shapes else 4,
        "make_sequence_length_divisible_by": 1,
        "dynamic_batching": {"enabled": packing == "dynamic", "sequence_length_round": rounding, **tokens},
        "sequence_packing": {"enabled": packing == "sequence", "algorithm": "modified_first_fit_decreasing", **tokens},
        "optimizer": {"name": "torch.optim.SGD", "kwargs": {"lr": LEARNING_RATE}},
        "generation": {"colocated": {"enabled": False}, "temperature": TEMPERATURE, "top_p": 1.0, "top_k": None},
        **changes,
    }


@contextmanager
def worker(*arguments: Any, **keywords: Any) -> Iterator[AutomodelPolicyWorker]:
    made = AutomodelPolicyWorker(*arguments, **keywords)
    try:
        yield made
    finally:
        assert made.shutdown()


def weights(made: AutomodelPolicyWorker) -> Tensors:
    return whole_weights(made._policy.model)


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []


# --- cases ---

EVERYWHERE = [(layout, packing) for layout in LAYOUTS for packing in PACKINGS]

Case = Callable[[int, Path], tuple[Tensors, dict[str, Any]]]


def told(report: dict[str, Any]) -> dict[str, Any]:
    return {"loss": report["global_loss"].tolist(), "grad_norm": report["grad_norm"].item()}


def asked_and_trained(layout: Layout, packing: str) -> Case:
    """Everything that is asked of a model, one step, and the weights after it."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        rows = shard(rank, layout)
        given = config(folder / "model", layout, packing, logprob_chunk_size=5)
        with worker(given, init_reference_model=False) as made:
            tensors = {**made.get_topk_logits(data=rows, k=3), **made.get_logprobs(rows)}
            trained = made.train(rows, ClippedPolicyGradientLoss())
            after = weights(made)
            seen = {**told(trained), "microbatches": len(trained["all_mb_metrics"]["loss"])}
        return {**tensors, **after}, seen

    return play


def in_16_bits(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """Packed rows in bfloat16: log-probabilities, and one step."""
    rows, given = shard(rank, Layout(dp=2)), config(folder / "model", Layout(dp=2), "sequence", precision="bfloat16")
    with worker(given, init_reference_model=False) as made:
        logprobs = made.get_logprobs(rows)["logprobs"]
        trained = made.train(rows, ClippedPolicyGradientLoss())
        return {"logprobs": logprobs}, told(trained)


def rows_of(rank: int, counts: tuple[int, int]) -> BatchedDataDict[Any]:
    start = sum(counts[:rank])
    return batch().slice(start, start + counts[rank])


def uneven(counts: tuple[int, int]) -> Case:
    """A step over packed rows of which ranks have different numbers, and what is asked of them."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        rows = rows_of(rank, counts)
        with worker(config(folder / "model", Layout(dp=2), "sequence"), init_reference_model=False) as made:
            tensors = dict(made.get_logprobs(rows))
            trained = made.train(rows, ClippedPolicyGradientLoss())
            return {**tensors, **weights(made)}, told(trained)

    return play


def refused(packing: str, counts: tuple[int, int], gbs: int | None = None, match: str = "row") -> Case:
    """What ranks with so many rows are told when they train on them; without gbs, when they ask for logprobs."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        rows = rows_of(rank, counts)
        with worker(config(folder / "model", Layout(dp=2), packing), init_reference_model=False) as made:
            train = partial(made.train, rows, ClippedPolicyGradientLoss(), gbs=gbs)
            ask = train if gbs is not None else partial(made.get_logprobs, rows)
            with pytest.raises(ValueError, match=match) as refusal:
                ask()
            return {}, {"told": str(refusal.value)}

    return play


def too_long(setting: str, stage: str) -> Case:
    """What ranks are told of which one has a row longer than a microbatch of the stage may be; then they go on with
    shorter ones.
    """

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        rows, loss = shard(rank, Layout(dp=2)), ClippedPolicyGradientLoss()
        given = config(folder / "model", Layout(dp=2), setting.partition("_")[0])
        given[setting][f"{stage}_mb_tokens"] = 20
        with worker(given, init_reference_model=False) as made:
            train = partial(made.train, loss_fn=loss, gbs=2)
            ask: Callable[[BatchedDataDict[Any]], object] = train if stage == "train" else made.get_logprobs
            with pytest.raises((RuntimeError, ValueError, AssertionError)) as refusal:
                ask(rows)
            ask(rows.slice(3, 4))
            return {}, {"told": str(refusal.value)}

    return play


class ReductionCounter(TorchDispatchMode):
    """Counts this process's reduce-scatters."""

    count = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(call)
        return call(*args, **(kwargs or {}))


def communicated(deferred: bool) -> Case:
    """How often a step reduces gradients, by the number of microbatches."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        layout, seen = Layout(dp=2), {}
        given = config(folder / "model", layout)
        given["dtensor_cfg"]["defer_fsdp_grad_sync"] = deferred
        with worker(given, init_reference_model=False) as made:
            for size in (4, 1):
                with ReductionCounter() as reductions:  # type: ignore[no-untyped-call]  # torch has no annotation
                    made.train(shard(rank, layout), ClippedPolicyGradientLoss(), mbs=size)
                seen[f"{4 // size}"] = reductions.count
        return {}, seen

    return play


def trained_without_limit(layout: Layout, backend: str = "transformers") -> Case:
    """A step in which one data-parallel rank has a gradient that is not finite, then a sound one; no limit."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        given = config(folder / "model", layout, backend=backend, max_grad_norm=None)
        with worker(given, init_reference_model=False) as made:
            broken = shard(rank, layout)
            if broken["input_lengths"][0] == LENGTHS[0]:
                broken["advantages"][0, 1] = float("nan")
            before = local_weights(made)
            skipped = made.train(broken, ClippedPolicyGradientLoss())
            unchanged = all(map(torch.equal, local_weights(made), before))
            trained = made.train(shard(rank, layout), ClippedPolicyGradientLoss())
            return weights(made), {"skipped": skipped["grad_norm"].item(), "unchanged": unchanged, **told(trained)}

    return play


def local_weights(made: AutomodelPolicyWorker) -> list[torch.Tensor]:
    """This rank's part of every parameter."""
    parameters = [parameter.detach() for parameter in made._policy.model.parameters()]
    return [(part.to_local() if isinstance(part, DTensor) else part).clone() for part in parameters]


def seeded(layout: Layout) -> Case:
    """With which seed each rank drops out elements."""

    def play(rank: int, folder: Path) -> tuple[Tensors, dict[str, Any]]:
        with worker(config(folder / "model", layout, seed=40), init_optimizer=False, init_reference_model=False):
            return {}, {"seed": torch.initial_seed()}

    return play


ADAM = {"name": "torch.optim.AdamW", "kwargs": {"lr": 0.01}}

CASES: dict[str, tuple[int, Case]] = {
    "in_16_bits": (2, in_16_bits),
    "uneven": (2, uneven((5, 3))),
    "trained_without_rows": (2, refused("sequence", (8, 0), gbs=8)),
    "asked_without_rows": (2, refused("sequence", (8, 0))),
    "uneven_and_not_packed": (2, refused("none", (5, 3), gbs=8)),
    "asked_uneven_and_not_packed": (2, refused("none", (5, 3))),
    "uneven_in_two_steps": (2, refused("sequence", (6, 2), gbs=4)),
    "more_than_whole_steps": (2, refused("none", (4, 3), gbs=4, match="samples")),
    **{
        f"too_long_{setting}_{stage}": (2, too_long(setting, stage))
        for setting in ("dynamic_batching", "sequence_packing")
        for stage in ("logprob", "train")
    },
    **{f"communicated_{deferred}": (2, communicated(deferred)) for deferred in (True, False)},
    **{f"{layout}_{packing}": (layout.ranks, asked_and_trained(layout, packing)) for layout, packing in EVERYWHERE},
    **{f"seeded_{layout}": (layout.ranks, seeded(layout)) for layout in TWO_RANKS},
    **{f"unlimited_{layout}": (layout.ranks, trained_without_limit(layout)) for layout in TWO_RANKS},
}
"""Ranks that play, and the case."""

# --- ranks ---

CASES |= {
    f"automodel_unlimited_{layout}": (2, trained_without_limit(layout, "automodel"))
    for layout in TWO_RANKS
    if layout.cp == 1
}


class Played:
    """Cases and what their ranks saw, each played when it is first asked for. folder: has the model."""

    def __init__(self, pool: RankPool, folder: Path, warning: WarningAction = "error") -> None:
        self.folder = folder
        self._of = cache(lambda name: pool.play(play, name, folder, ranks=CASES[name][0], warning=warning))

    def ranks(self, name: str) -> list[dict[str, Any]]:
        """What each rank saw."""
        return [seen for _, seen in self._of(name)]

    def tensors(self, name: str) -> list[Tensors]:
        """What each rank computed."""
        return [tensors for tensors, _ in self._of(name)]


def play(rank: int, name: str, folder: Path) -> tuple[Tensors, dict[str, Any]]:
    disable_progress_bar()
    return CASES[name][1](rank, folder)
