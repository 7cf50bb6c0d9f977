"""A client's local step as a CUDA graph: launched whole, where it is otherwise hundreds of launches by the host.

What is captured is the same for every batch: kernels, the addresses of their tensors, numbers of the host. So a step
takes its positions from one buffer, draws from generators that the graph knows, and looks at no value. On other devices
nothing can be captured; there the same steps are called as they are.

Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from methods.base import MethodError, Tensors

WARM_UP = 3
"""Steps that are taken plainly before one is captured: the optimiser makes its state in them, libraries choose."""

Work = Callable[[], Tensors]
Step = Callable[[Tensor], Tensors]


class RepeatedStep:
    """A step that is captured once it was taken a few times, and replayed from then on; to the same bits.

    Batches of another shape than the first, such as a smaller last one, are taken plainly.

    Args:
        step: from positions to numbers; changes weights, gradients, optimiser and generators in place.
        generators: all that it draws from.
        device: where it computes.
    """

    def __init__(self, step: Step, generators: Sequence[torch.Generator], device: torch.device) -> None:
        self._step, self._generators, self._device = step, generators, device
        self._positions: Tensor | None = None
        self._replay: Work | None = None
        self._taken = 0
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, positions: Tensor) -> Tensors:
        """The numbers of the step at these positions; the next call may overwrite them.

        Raises:
            MethodError: torch cannot capture the step.
        """
        if self._positions is None:
            self._positions = positions.clone()
        if positions.shape != self._positions.shape:
            return self._step(positions)
        buffer = self._positions.copy_(positions)
        self._taken += 1
        if self._taken <= WARM_UP:
            return self._beside(lambda: self._step(buffer))
        if self._replay is None:
            self._replay = capture(lambda: self._step(buffer), self._generators, self._device)
        return self._replay()

    def _beside(self, work: Work) -> Tensors:
        """Do work on a stream of its own: what autograd made on the ordinary stream cannot be captured."""
        if self._side is None:
            return work()
        ordinary = torch.cuda.current_stream(self._device)
        self._side.wait_stream(ordinary)
        with torch.cuda.stream(self._side):
            found = work()
        ordinary.wait_stream(self._side)
        return found


def capture(work: Work, generators: Sequence[torch.Generator], device: torch.device) -> Work:
    """Work that does the same again; on CUDA as one graph. It is not done by capturing it.

    Args:
        work: without arguments, on tensors that stay where they are.
        generators: all that it draws from.
        device: where it computes.

    Raises:
        MethodError: torch cannot capture it.
    """
    if device.type != "cuda":
        return work
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    try:
        # Other threads of this process may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = work()
    except RuntimeError as error:
        raise MethodError(
            f"workers.graphs: a local step cannot be captured as a CUDA graph ({error}); set workers.graphs=off"
        ) from error

    def replay() -> Tensors:
        graph.replay()
        return found

    return replay
