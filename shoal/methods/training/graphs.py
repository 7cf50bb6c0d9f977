"""Work on a GPU as a CUDA graph: one launch by the host instead of hundreds.

A graph replays the same kernels on the same addresses with the same numbers from the host. So captured work reads
changing values from tensors that stay in place, draws from generators that the graph knows, and looks at no value. On
other devices nothing can be captured, and the work is called as it is.

Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.methods.contract.context import MethodError

Work = Callable[[], None]


class GraphPool:
    """The memory that several graphs share: they are replayed one at a time, and none reads another's results."""

    def __init__(self) -> None:
        self._handle: Any = None

    def handle(self) -> Any:
        """Return torch's handle of the memory."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def renew(self) -> None:
        """Use other memory from now on: after a failed capture, nothing can be captured into this one."""
        self._handle = None


def capture(work: Work, generators: Sequence[torch.Generator], device: torch.device, pool: GraphPool) -> Work:
    """Return work that repeats the given work, on CUDA as one graph. Capturing it does not do it.

    Args:
        work: takes no arguments, works on tensors that stay in place, and has been done a few times before.
        generators: all generators that it draws from.
        device: its device.
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
    """Make a generator usable again that a failed capture left waiting for the end of the capture."""
    other = torch.Generator(device)
    other.set_state(state)
    generator.graphsafe_set_state(other.graphsafe_get_state())


class SideStream:
    """A stream beside the ordinary one: work that autograd recorded on the ordinary stream cannot be captured.

    Args:
        device: the device of the work; devices other than CUDA have no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def do(self, work: Work) -> None:
        """Do the work after everything launched before, and before everything launched later."""
        if self._stream is None:
            work()
            return
        ordinary = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(ordinary)
        with torch.cuda.stream(self._stream):
            work()
        ordinary.wait_stream(self._stream)
