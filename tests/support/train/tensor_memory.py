"""Measures the peak memory of a computation's tensors, by counting them as they are created and freed.

It works on the CPU, and on torch's meta device, where a model of any size takes no memory and no time.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class TensorMemory(TorchDispatchMode):
    """Counts the storages that operations create inside the block. Earlier storages are not counted."""

    def __init__(self, *before: torch.Tensor) -> None:
        super().__init__()
        self.live = 0
        """The peak memory in bytes."""
        self.peak = 0
        self._known: set[int] = set()
        self._before = [tensor.untyped_storage() for tensor in before]
        self._known |= {storage._cdata for storage in self._before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        name = storage._cdata
        if name in self._known:
            return
        self._known.add(name)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, name, storage.nbytes())

    def _free(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.live -= size
