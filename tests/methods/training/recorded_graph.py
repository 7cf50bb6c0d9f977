"""What a CUDA graph does, on the CPU: operations are recorded once, and repeated on the same tensors from then on.

Whatever a step takes from Python (a counter, the next entry of a list) stays as it was when it was recorded, tensors
have to be where they were, and nothing may look at a value: a step that a graph would repeat wrongly is wrong here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.methods.training.graphs import Work
from tests.pretend_gpu.rules import ANSWERED_ON_THE_HOST, CHECKED_ON_THE_HOST, SHAPE_BY_VALUE

LOOKING = ANSWERED_ON_THE_HOST | CHECKED_ON_THE_HOST | SHAPE_BY_VALUE


class Recording(TorchDispatchMode):
    """Records operations; `repeat` carries them out again.

    Args:
        generators: the only ones that may be drawn from.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.generators = {id(generator) for generator in generators}
        self.addresses = {generator._cdata for generator in generators}  # type: ignore[attr-defined]
        self.recorded: list[tuple[Any, Any, dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LOOKING:
            raise RuntimeError(f"{func} looks at a value, which a graph cannot")
        drawn = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch._C.Generator)]
        if any(leaf._cdata not in self.addresses for leaf in drawn):  # type: ignore[attr-defined]
            raise RuntimeError(f"{func} draws from a generator that the graph does not know")
        found = func(*args, **kwargs)
        # A view needs no repeating: it shows what its base has by then.
        returned = func._schema.returns
        if not returned or any(r.alias_info is None or r.alias_info.is_write for r in returned):
            self.recorded.append(
                (func, args, kwargs, [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)])
            )
        return found

    @torch.no_grad()
    def repeat(self) -> None:
        """Carry out what was recorded, each result where it was."""
        for func, args, kwargs, kept in self.recorded:
            found = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for old, new in zip(kept, found, strict=True):
                if old is not new:
                    old.copy_(new)


class Recorder:
    """Stands for `shoal.methods.training.graphs.capture`.

    Attributes:
        captured: how many steps were captured.
        repeated: how often any was repeated.
    """

    def __init__(self) -> None:
        self.captured = self.repeated = 0

    def capture(
        self, work: Work, generators: Sequence[torch.Generator], device: torch.device, pool: Any = None
    ) -> Work:
        """As of `graphs.capture`: capturing changes nothing."""
        recording = Recording(generators)
        kept: list[tuple[Tensor, Tensor]] = []
        states = [(generator, generator.get_state()) for generator in generators]
        with _Undone(kept), recording:
            work()
        for tensor, before in reversed(kept):
            tensor.copy_(before)
        for generator, state in states:
            generator.set_state(state)
        self.captured += 1

        def repeat() -> None:
            self.repeated += 1
            recording.repeat()

        return repeat


class _Undone(TorchDispatchMode):
    """Keeps what tensors held before they are changed."""

    def __init__(self, kept: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable or "batch_norm" in str(func):  # whose statistics the schema does not name
            for leaf in tree_leaves((args, kwargs or {})):
                if isinstance(leaf, Tensor):
                    self.kept.append((leaf.detach(), leaf.detach().clone()))
        return func(*args, **(kwargs or {}))
