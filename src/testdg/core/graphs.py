"""CUDA graphs: a step of many small kernels is recorded once and then launched as one."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Generator, Tensor

Function = Callable[..., dict[str, Tensor]]
Recording = tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], dict[str, Tensor]]
"""A graph, the tensors that it reads, and those that it writes."""
WARM_UP = 3
"""Calls that run as usual before one is recorded, so that libraries and optimisers have allocated what they need."""
MOST = 8
"""Recordings that are stored of a function; further shapes run as usual."""


class Recorded:
    """Runs a function of tensors; on a GPU, from the fourth call with the same shapes and key on, as a CUDA graph.

    The function must change tensors in place only, must not wait for the host, and host state that it depends on must
    be part of the key: a recording replays kernels on the same memory and knows nothing else. Outputs are copies, so
    that they outlive the next call and all recordings can share one memory pool; a caller that reads them at once can
    save the copies (`copies=False`).
    """

    def __init__(self, function: Function, generator: Generator | None = None, *, copies: bool = True) -> None:
        self.function, self.generator, self.copies = function, generator, copies
        self.pool: Any = None
        self.calls: dict[Hashable, int] = {}
        self.graphs: dict[Hashable, Recording] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without recordings: they replay kernels on the memory of the original."""
        return {**self.__dict__, "pool": None, "calls": {}, "graphs": {}}

    def __call__(self, key: Hashable, *inputs: Tensor) -> dict[str, Tensor]:
        """Run the function, or launch its recording."""
        key = (key, *(tuple(tensor.shape) for tensor in inputs))
        if not inputs[0].is_cuda or (key not in self.graphs and not self._due(key)):
            return self.function(*inputs)
        if key not in self.graphs:
            self.graphs[key] = self._record(inputs)
        graph, places, outputs = self.graphs[key]
        for place, tensor in zip(places, inputs, strict=True):
            place.copy_(tensor)
        graph.replay()
        return {name: value.clone() for name, value in outputs.items()} if self.copies else outputs

    def _due(self, key: Hashable) -> bool:
        if len(self.graphs) >= MOST:
            return False
        self.calls[key] = self.calls.get(key, 0) + 1
        return self.calls[key] > WARM_UP

    def _record(self, inputs: tuple[Tensor, ...]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        places = tuple(tensor.clone() for tensor in inputs)
        torch.clear_autocast_cache()  # weights cast before the recording must not be part of it
        torch.cuda.synchronize()
        self.pool = torch.cuda.graph_pool_handle() if self.pool is None else self.pool
        try:
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = self.function(*places)
        except BaseException:
            self.pool = None  # a failed recording may have closed it
            raise
        torch.clear_autocast_cache()
        return graph, places, outputs
