"""How a process computes while it works for a run: which algorithms, and how exact its products are.

On a CPU nothing here changes a result. On a GPU two things may: cuDNN takes TF32 (10 bits of mantissa) for the
convolutions of float32 networks unless told, and some algorithms add up in whatever order their threads come.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.utils.deterministic

# cuBLAS repeats its sums only with workspaces of a fixed size, and reads this once, at its first product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

TF32 = "tf32"


@contextlib.contextmanager
def arithmetic(precision: str, deterministic: bool) -> Iterator[None]:
    """Compute as a run's settings say, and afterwards as before.

    Args:
        precision: as resolved for the run; `tf32` takes TF32 for float32 products and convolutions on a GPU, any other
            takes float32 for them.
        deterministic: take only algorithms that repeat to the bit; an operation that has none raises `RuntimeError`.
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = (products.fp32_precision, convolutions.fp32_precision)
    algorithms = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        products.fp32_precision = convolutions.fp32_precision = TF32 if precision == TF32 else "ieee"
        if deterministic:
            torch.use_deterministic_algorithms(True)
            # Nothing here reads memory before it is written: filling all of it first would cost, and change nothing.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        yield
    finally:
        products.fp32_precision, convolutions.fp32_precision = before
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
