"""The arithmetic of a process while it works for a run: the precision of its products.

On a CPU nothing here changes a result. On a GPU cuDNN by default uses TF32 (10 bits of mantissa) for convolutions of
float32 networks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

# cuBLAS repeats its sums only with workspaces of a fixed size, and reads this once, at its first product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

TF32 = "tf32"


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Compute with the arithmetic of a run's settings within this context.

    Args:
        precision: as resolved for the run; `tf32` uses TF32 for float32 products and convolutions on a GPU, any other
            uses float32 for them.
    """
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    fp32_precision = "ieee"
    if precision == TF32:
        fp32_precision = TF32
    before = (products.fp32_precision, convolutions.fp32_precision)
    try:
        products.fp32_precision = convolutions.fp32_precision = fp32_precision
        yield
    finally:
        products.fp32_precision, convolutions.fp32_precision = before
