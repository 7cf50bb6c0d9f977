"""Autocast on the pretend device, as CUDA has it: which operations it executes in the lower precision.

Which operations autocast looks at torch tells itself (those of CUDA); what it does with each stands in torch's
documentation, "CUDA ops that can autocast". One thing differs from CUDA: a weight is cast each time it is used,
and not once a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CUDA_KEY, OWN_KEY = "AutocastCUDA", "AutocastPrivateUse1"
_LOWER = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell _cudnn_rnn lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
    _scaled_dot_product_flash_attention"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
LOWER = frozenset(_LOWER.split())
"""What is carried out in the lower precision."""
WIDEST = frozenset(_WIDEST.split())
"""What is carried out in the widest precision of its tensors."""
BANNED = "binary_cross_entropy"
"""What CUDA refuses under autocast; everything else it looks at is carried out in float32."""


def looked_at() -> set[str]:
    """Names of the operations that autocast looks at on CUDA, with their overloads."""
    found = torch._C._dispatch_get_registrations_for_dispatch_key(CUDA_KEY)
    return {name.removeprefix("aten::") for name in found if name.startswith("aten::")}


def register(device: str) -> torch.library.Library:
    """Have torch carry out operations of this device as autocast wants; to be kept as long as the process lives."""
    library = torch.library.Library("aten", "IMPL", OWN_KEY)
    for name in looked_at():
        library.impl(name, _kernel(name, device))
    return library


def _kernel(name: str, device: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
    key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, OWN_KEY))

    def carried_out(*args: Any, **kwargs: Any) -> Any:
        if name == BANNED:
            raise RuntimeError(f"{name} is unsafe to autocast: use binary_cross_entropy_with_logits")
        wanted = torch.get_autocast_dtype(device) if name in LOWER | WIDEST else torch.float32
        if name in WIDEST and any(t.dtype == torch.float32 for t in _tensors((args, tuple(kwargs.values())), device)):
            wanted = torch.float32

        def cast(value: Any) -> Any:
            if type(value) in (list, tuple):
                return type(value)(map(cast, value))
            return value.to(wanted) if _eligible(value, device) else value

        with torch._C._ExcludeDispatchKeyGuard(key):
            return operation(*map(cast, args), **{word: cast(value) for word, value in kwargs.items()})

    return carried_out


def _tensors(value: Any, device: str) -> list[Tensor]:
    if type(value) in (list, tuple):
        return [tensor for each in value for tensor in _tensors(each, device)]
    return [value] if _eligible(value, device) else []


def _eligible(value: Any, device: str) -> bool:
    """Whether autocast may change it: a tensor of the device of floating numbers, and not of float64."""
    return (
        isinstance(value, Tensor)
        and value.device.type == device
        and value.is_floating_point()
        and value.dtype != torch.float64
    )
