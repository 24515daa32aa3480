"""QkvCalibration: samples queries, keys and values of forward passes and computes FP8 scales from them.

A cached number is the activation divided by its scale, and must be within float8_e4m3fn. Every microbatch gives one
sample for each tensor: the largest absolute value at its real tokens, because padding never reaches a cache. A
percentile over the samples excludes outlier microbatches; a margin allows for values that the batch did not show. Ranks
that hold parts of one sample (heads, stretches of a sequence) take the largest.

Samples are what layers hand to their attention function, and so what a cache holds: keys behind their norm and their
rotary embedding. Models find this function by a name registered with transformers. Inside the block the name stands for
a function that samples first and then calls the registered one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer_adapter._exchange import gather_values
from trainer_adapter.automodel.data import FlashAttentionKwargs, ProcessedMicrobatch
from trainer_adapter.automodel.rank import rank_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

KINDS = ("q", "k", "v")
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_LEFT_OUT = -1.0


class _Current(NamedTuple):
    """The microbatch that the model reads now, its real tokens, and the sample it goes to."""

    microbatch: ProcessedMicrobatch
    is_real: Tensor
    sample: dict[tuple[str, str], Tensor] | None

    def real_here(self) -> Tensor:
        """The real tokens at this rank's positions; context parallelism keeps these in seq_index while the
        model runs.
        """
        positions = self.microbatch.processed_inputs.seq_index
        return self.is_real if positions is None else self.is_real[:, positions[0]]


class QkvCalibration:
    """Samples a model's forward passes inside `with`; the model itself is unchanged.

        with QkvCalibration(model, percentile, margin, include_q) as calibration:
            for microbatch in calibration.watched(microbatches):
                ...  # one forward pass, of the whole model
        return calibration.scales(device_mesh)

    percentile: of the microbatches' largest values, in (0, 100], interpolated linearly.
    margin: a positive factor.
    include_q: sample queries too.

    Raises ValueError for other values, and for a model whose attention is not registered with transformers.
    """

    def __init__(
        self, model: nn.Module, percentile: float = 99.9, margin: float = 1.05, include_q: bool = False
    ) -> None:
        if not 0 < percentile <= 100:
            raise ValueError(f"percentile must be above 0 and at most 100, got {percentile}")
        if not (margin > 0 and math.isfinite(margin)):
            raise ValueError(f"margin must be positive and finite, got {margin}")
        self._percentile, self._margin = percentile, margin
        self._kinds = KINDS if include_q else KINDS[1:]
        self._layers = _attention_layers(model)
        self._tensors = [(layer, kind) for layer in self._layers.values() for kind in self._kinds]
        self._samples: list[dict[tuple[str, str], Tensor]] = []
        self._current: _Current | None = None
        self._names = {_attention_name(module) for module in self._layers}

    def __enter__(self) -> QkvCalibration:
        functions = _attention_functions()
        for name in self._names:
            functions[name] = partial(self._watch, functions[name])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current = None
        functions = _attention_functions()
        for name in self._names:
            del functions[name]  # which brings the registered one back

    def watched(
        self, microbatches: Iterable[ProcessedMicrobatch], num_valid_microbatches: int | None = None
    ) -> Iterator[ProcessedMicrobatch]:
        """Yield the same microbatches; the forward pass after each is its sample.

        Microbatches from index num_valid_microbatches on are dummies and give no sample (None: there are none). A
        microbatch without real tokens gives none either.
        """
        for number, microbatch in enumerate(microbatches):
            is_real = real_tokens(microbatch)
            is_valid = num_valid_microbatches is None or number < num_valid_microbatches
            sample: dict[tuple[str, str], Tensor] | None = {} if is_valid and bool(is_real.any()) else None
            self._current = _Current(microbatch, is_real, sample)
            if sample is not None:
                self._samples.append(sample)
            yield microbatch
        self._current = None

    def scales(self, mesh: DeviceMesh | None = None) -> dict[str, Any]:
        """Compute the scales; the same on all ranks.

        mesh: of all ranks, with dimensions dp, cp and tp. All ranks call this, and ranks with the same dp coordinate
        have the same number of samples. None: this process is alone.

        Returns `format` "fp8_e4m3", `percentile`, `margin`, `include_q`, `num_samples` of all ranks, and `layers`: by
        the name of each attention layer `k_scale` and `v_scale`, and `q_scale` if asked for. An activation is about its
        FP8 number times the scale. A tensor that was always 0 has scale 1.

        Raises ValueError if no rank has a sample, if a layer was not part of a forward pass, and for activations that
        are not finite.
        """
        samples = _gather_samples(self._stack_samples(), mesh)
        if not len(samples):
            raise ValueError("calibration needs at least one microbatch with a real token, and no rank had one")
        self._check(samples == _LEFT_OUT, "was not part of a forward pass")
        self._check(~samples.isfinite(), "is not finite")
        percentiles = samples.double().quantile(self._percentile / 100, dim=0).tolist()
        layers: dict[str, dict[str, float]] = {layer: {} for layer in self._layers.values()}
        for (layer, kind), largest in zip(self._tensors, percentiles, strict=True):
            layers[layer][f"{kind}_scale"] = largest * self._margin / _LARGEST if largest else 1.0
        return {
            "format": "fp8_e4m3",
            "percentile": self._percentile,
            "margin": self._margin,
            "include_q": "q" in self._kinds,
            "num_samples": len(samples),
            "layers": layers,
        }

    def _watch(
        self, attend: Any, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *others: Any, **arguments: Any
    ) -> Any:
        """An attention function of transformers: query [B,H,S,D], key and value [B,H_kv,S,D]."""
        layer, current = self._layers.get(module), self._current
        if layer is not None and current is not None and current.sample is not None:
            for kind, values in zip(KINDS, (query, key, value), strict=True):
                if kind in self._kinds:
                    largest = values.detach().abs().amax((1, 3)).float()  # [B,S]
                    largest = torch.where(current.real_here(), largest, 0).max()
                    before = current.sample.get((layer, kind), largest)  # of a layer that a model uses twice
                    current.sample[layer, kind] = torch.maximum(before, largest)
        return attend(module, query, key, value, *others, **arguments)

    def _stack_samples(self) -> Tensor:
        """[samples, tensors] float32 of this rank."""
        rows = [[float(sample.get(tensor, _LEFT_OUT)) for tensor in self._tensors] for sample in self._samples]
        return torch.tensor(rows).reshape(-1, len(self._tensors))

    def _check(self, is_wrong: Tensor, what: str) -> None:
        """Raise only after the ranks' samples are gathered: an earlier error on one rank would leave the others
        waiting.
        """
        for (layer, kind), is_bad in zip(self._tensors, is_wrong.any(0).tolist(), strict=True):
            if is_bad:
                raise ValueError(f"calibration: the {kind} of {layer} {what}")


def real_tokens(microbatch: ProcessedMicrobatch) -> Tensor:
    """[B,S] bool: true at tokens that are not padding. The shape is that of the microbatch's input_ids before
    sharding.
    """
    inputs = microbatch.processed_inputs
    rows = inputs.input_ids.shape[0]
    columns = torch.arange(inputs.seq_len, device=inputs.input_ids.device).expand(rows, -1)
    if isinstance(inputs.flash_attn_kwargs, FlashAttentionKwargs):
        return columns < inputs.flash_attn_kwargs.cu_seqlens_q[-1]
    lengths: Tensor = microbatch.data_dict["input_lengths"]
    return columns < lengths.to(columns.device)[:, None]


def _attention_layers(model: Any) -> dict[Any, str]:
    """The names of the decoder's attention layers; those of an image encoder have no cache."""
    decoder = set((model.get_decoder() if hasattr(model, "get_decoder") else model).modules())
    layers = {
        module: name
        for name, module in model.named_modules()
        if module in decoder and type(module).__name__.endswith("Attention") and hasattr(module, "layer_idx")
    }
    is_registered = all(_attention_name(module) in _attention_functions() for module in layers)
    if not (layers and is_registered and getattr(model, "_supports_attention_backend", False)):
        raise ValueError(
            f"cannot calibrate keys and values of {type(model).__name__}: its layers do not use an attention function "
            "that is registered with transformers"
        )
    return layers


def _attention_name(module: Any) -> Any:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _attention_functions() -> Any:
    """The functions by name. An entry that is set here hides the registered one until it is deleted."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # transformers may not be installed

    return ALL_ATTENTION_FUNCTIONS


def _gather_samples(own: Tensor, mesh: DeviceMesh | None) -> Tensor:
    """Gather [samples, tensors] of each rank into [all samples, tensors] float32; a collective call.

    Ranks that differ only in cp and tp have parts of the same samples, of which the largest counts; ranks along dp have
    different samples, in any number. NaN becomes infinity, which a maximum keeps.
    """
    largest = own.nan_to_num(nan=torch.inf, posinf=torch.inf)
    if mesh is None:
        return largest
    largest = largest.to(rank_device(mesh.device_type))
    for name in ("cp", "tp"):
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, mesh.get_group(name))
    tables = gather_values({"samples": largest}, group=mesh.get_group("dp"), device=largest.device)
    return torch.cat([table["samples"] for table in tables])
