"""Work on a GPU as a CUDA graph: launched whole, where it is otherwise hundreds of launches by the host.

What is captured is the same every time: kernels, the addresses of their tensors, numbers of the host. So it reads what
changes from tensors that stay where they are, draws from generators that the graph knows, and looks at no value. On
other devices nothing can be captured; there the same work is called as it is.

Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.methods.contract.context import MethodError

Work = Callable[[], None]


class GraphPool:
    """The memory that several graphs share: one of them is replayed at a time, and none needs what another left."""

    def __init__(self) -> None:
        self._handle: Any = None

    def handle(self) -> Any:
        """What torch knows it by."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def renew(self) -> None:
        """Take other memory from now on: into that of a graph that failed nothing can be captured."""
        self._handle = None


def capture(work: Work, generators: Sequence[torch.Generator], device: torch.device, pool: GraphPool) -> Work:
    """Work that does the same again; on CUDA as one graph. It is not done by capturing it.

    Args:
        work: without arguments, on tensors that stay where they are; done a few times before.
        generators: all that it draws from.
        device: where it computes.
        pool: the memory of the graph.

    Raises:
        MethodError: torch cannot capture it.
    """
    if device.type != "cuda":
        return work
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    drawing = [*generators, torch.cuda.default_generators[torch.cuda.current_device()]]
    states = [generator.get_state() for generator in drawing]
    try:
        # Other threads of this process may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=pool.handle(), capture_error_mode="thread_local"):
            work()
    except RuntimeError as error:
        pool.renew()
        for generator, state in zip(drawing, states, strict=True):
            _restore(generator, state, device)
        raise MethodError(
            f"workers.graphs: a local step cannot be captured as a CUDA graph ({error}); set workers.graphs=off"
        ) from error
    return graph.replay


def _restore(generator: torch.Generator, state: torch.Tensor, device: torch.device) -> None:
    """Have a generator go on that a failed capture left waiting for the end of the capture."""
    other = torch.Generator(device)
    other.set_state(state)
    generator.graphsafe_set_state(other.graphsafe_get_state())


class SideStream:
    """Does work on a stream of its own: what autograd made on the ordinary stream cannot be captured.

    Args:
        device: where the work is done; any other than CUDA has no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def do(self, work: Work) -> None:
        """Do the work after all that was asked before, and before all that is asked next."""
        if self._stream is None:
            work()
            return
        ordinary = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(ordinary)
        with torch.cuda.stream(self._stream):
            work()
        ordinary.wait_stream(self._stream)
