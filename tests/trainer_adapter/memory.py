"""Bytes of tensors on the CPU: what a block holds at most, counted by torch's operations and not by the process."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HeldBytes(TorchDispatchMode):
    """peak: the most bytes that tensors made inside the block held at once, whether their memory was written or not.

    What a kernel allocates and frees by itself is not seen. operations: how many were called, views included.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.held = self.peak = self.operations = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if type(leaf) is torch.Tensor}
        found = call(*args, **(kwargs or {}))
        self.operations += 1
        for leaf in tree_leaves(found):
            if type(leaf) is torch.Tensor and leaf.device.type == "cpu":
                self._hold(leaf.untyped_storage(), given)
        return found

    def _hold(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        if id(storage) in given or id(storage) in self._known:
            return
        self._known[id(storage)] = storage.nbytes()
        weakref.finalize(storage, self._release, id(storage))
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)

    def _release(self, known: int) -> None:
        self.held -= self._known.pop(known, 0)
