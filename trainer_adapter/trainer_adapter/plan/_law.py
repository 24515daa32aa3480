"""What a training step holds on one rank, in bytes, by arithmetic alone.

b is the size of an element in the precision of the forward pass (4 or 2), T the tokens of a microbatch on this rank
(those of a microbatch over the context-parallel ranks), t the tensor-parallel ranks, s = t with sequence parallelism
and 1 without. P are the parameters that FSDP divides among data- and context-parallel ranks (those of the model over
t), P_own this rank's part of them. h, i, H, K, d, V are the sizes of the hidden state and of the MLP, the number of
query heads and of key heads, and the sizes of a head and of the vocabulary.

What lives as long as the policy (ZeRO, arXiv:1910.02054, section 3, with everything in float32):
  weights          4 P_own
  optimizer        what the optimizer makes for P_own, 8 P_own for Adam (counted by running it without memory)
What FSDP2 holds in passes (torch.distributed.fsdp.fully_shard):
  gathered         b (P_root + 2 P_layer): the root stays whole until its backward pass; a layer is fetched while the
                   next one computes
  gradients        4 P with sums deferred to the last of several microbatches; 4 P_own with sums for each; nothing
                   before the first backward pass. While a group is differentiated, its gradients are there in the
                   precision of the pass, b, and once more in float32, 4, to be summed.
What autograd saves for a token and layer, by the operations of a transformers decoder layer (the method is that of
arXiv:2205.05198, section 4, which has 34 h for GPT's layer and 16 bits):
  norms            2 ((4 + b) h / s + b h + 4 / s): the input in float32, the scaled input, and the output, which the
                   projections save; with sequence parallelism they save it gathered. And the inverse deviation.
  norms of heads   (4 + b) (H + K) d / t + 4 (H + K) / t, for models that have them; rotation saves no input
  attention        b (2 H + 2 K) d / t + 4 H / t: query, key, value, output, and the log of the softmax's sum
                   (FlashAttention, arXiv:2205.14135). Under a mask keys and values are repeated to H heads, and with
                   context_parallel_attention=gathered they are those of all cp ranks.
  mask             b S S / cp for rows of S tokens: torch makes a float mask of a bool one in each layer
                   (sequence_packing.attention=sdpa, or context_parallel_attention=gathered)
  MLP              4 b i / t: gate, its activation, up, and their product
  adapters         b r for each adapted projection of rank r
and once: the last norm, cosine and sine 2 b d, and six integers of a token (ids, positions, targets). With activation
checkpointing (arXiv:1604.06174) a layer saves its input b h / s, and one layer at a time has all of the above again.
What the loss holds (losses/_token_logprobs.py):
  logits           b V T / t, to the end of the backward pass, and as much for their gradient at its beginning
  pieces           2 pieces of 1024 positions in float32, 4 V / t for a position, the old one and the new one
  head             b V h / t, the gradient of the output projection if it is trained, until the root's are summed

The peak is the largest of four moments: the backward pass of the loss; that of the last layer, when all activations of
layers are still there and gradients of b i / t + 2 b h for each token; the sums of the root's gradients at the end; and
the optimizer's step, which on a GPU makes a temporary of 4 P_own (torch's foreach implementation).

On the host: the reference model's weights, one copy of each entry of the state dict; weights, gradients and optimizer
with cpu_offload; weights and optimizer between steps if the generator uses the same devices (generation.colocated).
Torch rounds each tensor in pinned memory up to a power of two.

Not counted: buffers of NCCL, kernels' work space, what torch's allocator loses to fragments (some 5 to 10 % of a GPU),
and the memory of CUDA itself (0.5 GiB).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer_adapter.losses._token_logprobs import POSITIONS_AT_ONCE

_INTEGERS = 6 * 8
FLOAT32 = 4


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder.

    head_norms: queries and keys are normalised. adapter_rank: the sum over a layer's adapters.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    head_norms: bool
    adapter_rank: int = 0


@dataclass(frozen=True)
class RankWeights:
    """Numbers of parameters on a rank.

    own: this rank's part of the model. trained_own: those that need a gradient. trained_whole: those of the model over
    the tensor-parallel ranks.
    root, layer: of the root's group of FSDP and of the largest layer; trained_root, trained_layer: needing a gradient.
    optimizer_bytes: what the optimizer holds after its first step.
    step_bytes: what it makes in a step and frees again.
    tensors, entries, optimizer_tensors: bytes of each parameter, entry of the state dict (which has a tied parameter
    under each of its names), and tensor of the optimizer on this rank: each is rounded up in pinned memory.
    """

    own: int
    trained_own: int
    trained_whole: int
    root: int
    layer: int
    trained_root: int
    trained_layer: int
    optimizer_bytes: int
    step_bytes: int
    tensors: Sequence[int]
    entries: Sequence[int]
    optimizer_tensors: Sequence[int]


@dataclass(frozen=True)
class Work:
    """How a step runs.

    element: bytes of the precision of the forward pass.
    tokens, row_tokens: of a microbatch and of a row, over all context-parallel ranks.
    has_mask: attention gets a mask. gathers: keys and values of all context-parallel ranks.
    is_deferred: gradients of several microbatches are summed over ranks once.
    several: a step has more than one microbatch.
    """

    element: int
    tokens: int
    row_tokens: int
    tp: int
    cp: int
    sequence_parallel: bool
    checkpointing: bool
    has_mask: bool
    gathers: bool
    is_deferred: bool
    several: bool
    cpu_offload: bool

    @property
    def own_tokens(self) -> int:
        return self.tokens // self.cp

    @property
    def mask_entries(self) -> int:
        return self.row_tokens // self.cp * self.row_tokens if self.has_mask else 0


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank's device at the peak of a step. moment: when that is."""

    weights: int
    optimizer: int
    gathered: int
    gradients: int
    activations: int
    logits: int
    work_space: int
    moment: str

    @property
    def total(self) -> int:
        held = self.weights + self.optimizer + self.gathered + self.gradients
        return held + self.activations + self.logits + self.work_space


@dataclass(frozen=True)
class HostMemory:
    """Bytes in one rank's host memory. offloaded: weights and optimizer that are there while others use the device."""

    reference: int
    training: int
    offloaded: int


def step_memory(model: DecoderSizes, weights: RankWeights, work: Work) -> StepMemory:
    """The peak of a step after the first one, whose optimizer has its state."""
    return max(_moments(model, weights, work), key=lambda moment: moment.total)


def host_memory(
    weights: RankWeights, *, reference: bool, training: bool, offloads: bool, on_gpu: bool, pins: bool
) -> HostMemory:
    """What a rank keeps on the host.

    reference: there is a reference model. training: weights, gradients and optimizer are always there (cpu_offload).
    offloads: weights and optimizer go there between steps. on_gpu: the rank computes on one, so that the reference is
    in pinned memory, by powers of two; if it `pins`, the others are as well.
    """
    pins = pins and on_gpu
    own = _on_host(weights.tensors, pins)
    optimizer = _on_host(weights.optimizer_tensors, pins)
    return HostMemory(
        reference=_on_host(weights.entries, on_gpu) if reference else 0,
        training=own + FLOAT32 * weights.trained_own + weights.optimizer_bytes if training else 0,
        offloaded=own + optimizer if offloads else 0,
    )


def _on_host(sizes: Iterable[int], pins: bool) -> int:
    return sum(1 << (size - 1).bit_length() if pins and size else size for size in sizes)


def _moments(model: DecoderSizes, weights: RankWeights, work: Work) -> list[StepMemory]:
    element, is_on_host = work.element, work.cpu_offload
    saved = saved_activations(model, work)
    logits = element * model.vocabulary // work.tp * work.own_tokens
    head = element * model.vocabulary // work.tp * model.hidden if weights.trained_root else 0
    lasting = {
        "weights": 0 if is_on_host else FLOAT32 * weights.own,
        "optimizer": 0 if is_on_host else weights.optimizer_bytes,
    }
    kept, summed = _kept_gradients(weights, work)
    root, layer = element * weights.root, element * weights.layer
    at_loss = StepMemory(
        **lasting,
        gathered=root,
        gradients=kept,
        activations=saved,
        logits=2 * logits,
        work_space=max(_pieces(model, work), head + 2 * layer),
        moment="backward pass of the loss",
    )
    of_inputs = work.own_tokens * element * (model.intermediate // work.tp + 2 * model.hidden)
    again = saved_in_layer(model, work) if work.checkpointing else 0
    at_layer = StepMemory(
        **lasting,
        gathered=root + 2 * layer,
        gradients=kept,
        activations=saved - work.own_tokens * _norm(model.hidden, work) + again,
        logits=logits,
        work_space=head + element * weights.trained_layer + of_inputs,
        moment="backward pass of the last layer",
    )
    at_end = StepMemory(
        **lasting,
        gathered=root,
        gradients=max(kept, summed),
        activations=0,
        logits=logits,
        work_space=(element + FLOAT32) * weights.trained_root,
        moment="sum of the last gradients",
    )
    at_step = StepMemory(
        **lasting,
        gathered=0,
        gradients=summed,
        activations=0,
        logits=0,
        work_space=0 if is_on_host else weights.step_bytes,
        moment="step of the optimizer",
    )
    return [at_loss, at_layer, at_end, at_step]


def _kept_gradients(weights: RankWeights, work: Work) -> tuple[int, int]:
    """Bytes on the device before the last microbatch's backward pass, and after it."""
    own = 0 if work.cpu_offload else FLOAT32 * weights.trained_own
    if not work.several:
        return 0, own
    return (FLOAT32 * weights.trained_whole if work.is_deferred else own), own


def _pieces(model: DecoderSizes, work: Work) -> int:
    return min(work.own_tokens, 2 * POSITIONS_AT_ONCE) * FLOAT32 * model.vocabulary // work.tp


def saved_activations(model: DecoderSizes, work: Work) -> int:
    """Bytes that autograd holds when the forward pass has ended."""
    element, parts = work.element, _sequence_parts(work)
    once = _norm(model.hidden, work) + 2 * element * model.head_dim + _INTEGERS
    fixed = work.own_tokens * once
    if not work.checkpointing:
        kept_mask = work.mask_entries if work.gathers else 0
        return fixed + kept_mask + model.layers * saved_in_layer(model, work)
    return fixed + work.mask_entries + model.layers * work.own_tokens * element * model.hidden // parts


def saved_in_layer(model: DecoderSizes, work: Work) -> int:
    """Bytes that autograd holds for one layer without activation checkpointing."""
    element, tp = work.element, work.tp
    per_token = 2 * _norm(model.hidden, work) + _attention(model, work) + 4 * element * model.intermediate // tp
    per_token += element * model.adapter_rank
    if model.head_norms:
        both = model.heads + model.kv_heads
        per_token += ((FLOAT32 + element) * both * model.head_dim + FLOAT32 * both) // tp
    return work.own_tokens * per_token + element * work.mask_entries


def _norm(size: int, work: Work) -> int:
    parts = _sequence_parts(work)
    return ((FLOAT32 + work.element) * size + FLOAT32) // parts + work.element * size


def _attention(model: DecoderSizes, work: Work) -> int:
    """Of a token."""
    kv_heads = model.heads if work.has_mask else model.kv_heads
    kv_tokens = work.cp if work.gathers else 1
    values = (2 * model.heads + 2 * kv_heads * kv_tokens) * model.head_dim
    return (work.element * values + FLOAT32 * model.heads) // work.tp


def _sequence_parts(work: Work) -> int:
    return work.tp if work.sequence_parallel else 1
