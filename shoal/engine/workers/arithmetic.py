"""The arithmetic of a process while it works for a run: its algorithms, and the precision of its products.

On a CPU nothing here changes a result. On a GPU two things may: by default cuDNN uses TF32 (10 bits of mantissa) for
convolutions of float32 networks, and some algorithms add in the order in which their threads finish.
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
    """Compute with the arithmetic of a run's settings within this context.

    Args:
        precision: as resolved for the run; `tf32` uses TF32 for float32 products and convolutions on a GPU, any other
            uses float32 for them.
        deterministic: use only algorithms that repeat to the bit; an operation that has none raises `RuntimeError`.
    """
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    fp32_precision = "ieee"
    if precision == TF32:
        fp32_precision = TF32
    before = (products.fp32_precision, convolutions.fp32_precision)
    algorithms = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        products.fp32_precision = convolutions.fp32_precision = fp32_precision
        if deterministic:
            torch.use_deterministic_algorithms(True)
            # No code here reads memory before it is written: to fill it first would cost time and change nothing.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        yield
    finally:
        products.fp32_precision, convolutions.fp32_precision = before
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
