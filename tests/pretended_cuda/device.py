"""A pretended CUDA device, for a torch without CUDA. Import this module before torch, in a process of its own.

Tensors say `cuda:0` and hold the memory of a CPU tensor, so values, control flow that depends on them, and collectives
are real. The code under test takes its CUDA paths: `torch.cuda.is_available()` is true after `start`.

- An operation on tensors of both devices raises RuntimeError, as on a GPU. So does a tensor on the CPU in a group of
  NCCL alone (gloo carries the tensors in fact).
- `waits` counts, by what and by file and line, each time the host would wait for the device: a value that is read, a
  mask that becomes indices, a copy that blocks, `synchronize`, `empty_cache`. Torch waits for a blocking copy in either
  direction, so these count too. A copy that does not block needs pinned memory on its way to the host; else it counts.
- A copy to the host that does not block arrives when the host waits next. Until then a read there finds zeros.
- `copies` has the stream of each copy between host and device.

What it cannot see: any other work that runs later than it is queued, or on a stream that nobody waits for; how long
anything takes; memory of the device and its allocator; NCCL itself (order, deadlock, timeouts, splits), CUDA IPC;
kernels and their limits (attention is written out below; FlashAttention, compiled code and Triton do not run); copies
from memory that is not pinned and that are too large to be staged, for which a host waits as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

from tests.pretended_cuda.build import library, torch_folder

if "torch" in sys.modules:
    raise RuntimeError("torch is imported already: it has asked for a GPU, and believes there is none")
for _name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(torch_folder() / "lib" / _name), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # it asks which devices there are when it is imported, at torch's first need
import torch._inductor.config  # noqa: E402
import torch.distributed  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

_aten = torch.ops.aten
_CUDA = torch.device("cuda", 0)


class Copy(NamedTuple):
    """to: "cuda" or "cpu". stream: the number of the stream that is current; 0 is the default one."""

    to: str
    stream: int


waits: Counter[str] = Counter()
copies: list[Copy] = []
recorded: set[int] = set()
"""Addresses of memory that may not be used again before another stream has done with it."""
started_group: dict[str, Any] = {}
"""The arguments with which the process group was started."""

# --- where something happens ---

_OURS = ("/trainer_adapter/trainer_adapter/", "/client/dataplane_client/")


def _where() -> str:
    """The innermost line of the library's, and that of transformers if it is further in."""
    frame: FrameType | None = sys._getframe(1)
    inner = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _OURS):
            return f"{name.rsplit('/', 3)[1]}/{'/'.join(name.rsplit('/', 3)[2:])}:{frame.f_lineno}{inner}"
        if "/site-packages/transformers/" in name and not inner:
            inner = f" in transformers/{name.rsplit('/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return f"outside of the library{inner}"


def _wait(what: str) -> None:
    waits[f"{what} at {_where()}"] += 1
    _arrive()


_under_way: list[tuple[Tensor, Tensor]] = []
"""Copies to the host that have not arrived: where to, and the values."""


def _arrive() -> None:
    """Work on the device sees its copies in order, so this happens without a wait, too."""
    for target, values in _under_way:
        target.copy_(values)
    _under_way.clear()


# --- tensors ---


class PretendedTensor(torch.Tensor):
    """Says `cuda:0`; held: a tensor on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> PretendedTensor:
        made: PretendedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=_CUDA,
        )
        made.held = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})

    # What torch does without the dispatcher.

    def tolist(self) -> Any:
        _wait("tolist")
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        recorded.add(self.held.untyped_storage().data_ptr())


_PLAIN = (torch.Tensor, torch.nn.Parameter, PretendedTensor)


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, PretendedTensor) else value


def _wrap(value: Any) -> Any:
    return PretendedTensor(value) if isinstance(value, Tensor) and not isinstance(value, PretendedTensor) else value


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


# --- operations ---

_MIXES = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
"""Operations that accept tensors of both devices; all others accept only 0-d tensors on the CPU beside."""
_READS = {
    _aten._local_scalar_dense.default: "a value is read",
    _aten.nonzero.default: "nonzero",
    _aten.masked_select.default: "masked_select",
    _aten.equal.default: "equal",
    _aten.is_nonzero.default: "a value is read",
    _aten.unique_consecutive.default: "unique",
    _aten._unique2.default: "unique",
}


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(type(tensor) not in _PLAIN for tensor in tensors):
        return NotImplemented  # DTensor comes back with its local part
    here = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
    on_host = [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor) and tensor.device.type == "cpu"]
    if here:
        _refuse_mixed(function, args, on_host)
        if not any(_is_planned(tensor) for tensor in here):
            _count(function, args, kwargs)
    if function is _aten._to_copy.default:
        return _to_copy(args[0], kwargs)
    if function is _aten.copy_.default:
        return _copy(*args, **kwargs)
    asked = kwargs.get("device")
    pins = bool(kwargs.get("pin_memory"))
    given = {**kwargs, **({"device": "cpu"} if _is_cuda(asked) else {}), **({"pin_memory": False} if pins else {})}
    found = function(*tree_map(_inner, args), **tree_map(_inner, given))
    if not _is_cuda(asked) and (asked is not None or not here):
        return _pin(found) if pins else found
    wrapped = tree_map(_wrap, found)
    return return_and_correct_aliasing(function, args, kwargs, wrapped) if here and _is_aten(function) else wrapped


def _is_planned(tensor: Tensor) -> bool:
    """DTensor plans an operation by running it on tensors without values."""
    return isinstance(_inner(tensor), FakeTensor)


def _is_aten(function: Any) -> bool:
    return bool(function.namespace == "aten")


def _refuse_mixed(function: Any, args: Any, on_host: list[Tensor]) -> None:
    writes_to_host = function._schema.name.endswith("_") and any(args[0] is tensor for tensor in on_host)
    is_mixed = writes_to_host or any(tensor.ndim > 0 for tensor in on_host)
    if _is_aten(function) and is_mixed and function not in _MIXES:
        raise RuntimeError(f"{function}: Expected all tensors to be on the same device, but found cuda:0 and cpu")


def _count(function: Any, args: Any, kwargs: Any) -> None:
    if function in _READS:
        _wait(_READS[function])
    elif function is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        _wait("repeat_interleave without output_size")
    elif function in (_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default):
        indices = [index for index in args[1] if index is not None]
        if any(not isinstance(index, PretendedTensor) and index.ndim > 0 for index in indices):
            _wait("indices from the host")
        elif any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            _wait("a mask becomes indices")


# --- copies, and pinned memory ---

_pinned: dict[int, Any] = {}
"""Storages by address, kept for ever: an address that is used again would be taken for pinned memory."""


def _pin(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = storage
    return tensor


def _is_pinned(tensor: Tensor, *_: Any) -> bool:
    return not isinstance(tensor, PretendedTensor) and tensor.untyped_storage().data_ptr() in _pinned


def _pinned_copy(tensor: Tensor, *_: Any) -> Tensor:
    return tensor if _is_pinned(tensor) else _pin(tensor.clone())


def _to_copy(source: Tensor, kwargs: dict[str, Any]) -> Tensor:
    asked, async_copy = kwargs.get("device"), bool(kwargs.get("non_blocking"))
    from_here = isinstance(source, PretendedTensor)
    to_here = from_here if asked is None else _is_cuda(asked)
    given = {**kwargs, **({} if asked is None or not to_here else {"device": "cpu"}), "pin_memory": False}
    if not from_here and to_here:
        _arrive()
    made: Tensor = _aten._to_copy.default(_inner(source), **given)
    if from_here != to_here and torch.device(asked or "cpu").type != "meta" and not _is_planned(source):
        copies.append(Copy("cuda" if to_here else "cpu", _streams.current.number))
        if not async_copy:
            _wait("a blocking copy to the device" if to_here else "a blocking copy to the host")
        elif from_here:
            _under_way.append((_pin(made), made.clone()))
            made.zero_()
    return PretendedTensor(made) if to_here else made


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    from_here, to_here = isinstance(source, PretendedTensor), isinstance(target, PretendedTensor)
    if from_here or to_here:
        _arrive()
    if from_here != to_here and not _is_planned(source):
        copies.append(Copy("cuda" if to_here else "cpu", _streams.current.number))
        on_host = source if to_here else target
        if not non_blocking or (from_here and not _is_pinned(on_host)):
            _wait("a blocking copy to the device" if to_here else "a blocking copy to the host")
    if from_here and not to_here and non_blocking and _is_pinned(target):
        _under_way.append((target, _inner(source).clone()))
        target.zero_()
    else:
        _inner(target).copy_(_inner(source))
    return target


# --- streams ---


class Stream:
    """The work of a stream is done when it is queued; number: 0 is the default stream."""

    _last = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = _CUDA
        Stream._last += 1
        self.number = Stream._last

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        _wait("synchronize of a stream")

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        self._before = _streams.current
        _streams.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _streams.current = self._before


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        _wait("synchronize of an event")

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 0.0


_DEFAULT = Stream()
_DEFAULT.number = 0


class _Streams(threading.local):
    """The current stream of each thread."""

    current = _DEFAULT


_streams = _Streams()


# --- torch.cuda and its like ---


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """scaled_dot_product_attention, written out for the pretended device."""
    if query.device.type != "cuda":
        return _torch_attention(query, key, value, *args, **kwargs)
    given = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)), **kwargs}
    mask, groups = given.get("attn_mask"), query.shape[-3] // key.shape[-3]
    if mask is not None and mask.device != query.device:
        raise RuntimeError("attn_mask must be on the device of the query")
    key, value = (part.repeat_interleave(groups, -3) if groups > 1 else part for part in (key, value))
    scores = (query @ key.transpose(-1, -2)).float() * (given.get("scale") or 1 / math.sqrt(query.shape[-1]))
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).to(value.dtype) @ value


_torch_attention = torch.nn.functional.scaled_dot_product_attention
_torch_group = torch.distributed.init_process_group
_torch_thread = threading.Thread.run


def _start_group(backend: str | None = None, device_id: torch.device | None = None, **arguments: Any) -> None:
    started_group.update(backend=backend, device_id=device_id)
    _torch_group(backend="cpu:gloo,cuda:gloo", **arguments)


def _run_thread(thread: threading.Thread) -> None:
    with _device():
        _torch_thread(thread)


class _Device(TorchDispatchMode):
    """Makes tensors where `device="cuda"` is asked for, and pinned memory; guards groups of NCCL."""

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d" and started_group.get("backend") == "nccl":
            _refuse_host(function, args)
        return _run(function, args, kwargs or {})


def _device() -> Any:
    made: Any = _Device
    return made()


def _refuse_host(function: Any, args: Any) -> None:
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    if any(type(tensor) is torch.Tensor and tensor.device.type == "cpu" for tensor in tensors):
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if "_object" in frame.f_code.co_name:  # torch moves objects to the device of the group by itself
                return
            frame = frame.f_back
        raise RuntimeError(f"No backend type associated with device type cpu: {function} at {_where()}")


_ANSWERS: dict[str, Callable[..., Any]] = {
    "_lazy_init": lambda: None,
    "init": lambda: None,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda _: None,
    "device": lambda _: contextlib.nullcontext(),
    "_device": lambda _: contextlib.nullcontext(),
    "Stream": Stream,
    "Event": Event,
    "current_stream": lambda _=None: _streams.current,
    "default_stream": lambda _=None: _DEFAULT,
    "stream": lambda stream: contextlib.nullcontext() if stream is None else stream,
    "synchronize": lambda _=None: _wait("synchronize of the device"),
    "empty_cache": lambda: _wait("empty_cache"),
    "get_device_name": lambda _=None: "a pretended GPU",
    "get_device_capability": lambda _=None: (9, 0),
    "get_device_properties": lambda _=None: SimpleNamespace(
        total_memory=80 << 30, uuid="pretended", name="a pretended GPU", major=9, minor=0, multi_processor_count=132
    ),
    "manual_seed": lambda _: None,
    "manual_seed_all": lambda _: None,
    "get_rng_state": lambda _=None: torch.get_rng_state(),
    "set_rng_state": lambda state, _=None: torch.set_rng_state(state),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    "memory_allocated": lambda _=None: 0,
    "is_bf16_supported": lambda *_: True,
    "is_current_stream_capturing": lambda: False,
}


def start() -> None:
    """From now on this process has a GPU; so have threads that begin after it. It stays so until the process ends."""
    patched: Any = torch
    for name, answer in _ANSWERS.items():
        setattr(patched.cuda, name, answer)
    patched.cuda.nccl.version = lambda: (2, 27, 3)
    patched._C._cuda_getDeviceCount = lambda: 1
    patched.Tensor.is_pinned, patched.Tensor.pin_memory = _is_pinned, _pinned_copy
    patched.nn.functional.scaled_dot_product_attention = _attention
    patched.distributed.init_process_group = patched.distributed.distributed_c10d.init_process_group = _start_group
    patched.distributed.get_backend = lambda _=None: started_group["backend"]
    for module in (_fsdp_param, _fsdp_param_group, _fsdp_collectives):
        for name in ("free_storage", "alloc_storage"):
            if hasattr(module, name):
                setattr(module, name, lambda _: None)  # a wrapper has no storage to resize
    setattr(threading.Thread, "run", _run_thread)  # noqa: B010  # mypy lets no method be assigned
    patched._C._set_only_lift_cpu_tensors(True)
    _device().__enter__()


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Yields a counter that has the waits of the block at its end."""
    before, seen = waits.copy(), Counter[str]()
    yield seen
    seen.update(waits - before)
