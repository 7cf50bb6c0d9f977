"""Operations that torch has for devices alone, written out for the CPU: the cell of an LSTM, BatchNorm of bf16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def lstm_cell(
    of_input: Tensor, of_hidden: Tensor, cell: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell and gates (n, 4h) after a step."""
    gates = of_input + of_hidden
    for each in (bias, hidden_bias):
        gates = gates if each is None else gates + each
    enter, forget, new, out = gates.chunk(4, 1)
    enter, forget, new, out = enter.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = forget * cell + enter * new
    return out * after.tanh(), after, torch.cat((enter, forget, new, out), 1)


def lstm_cell_backward(
    of_hidden: Tensor | None, of_cell: Tensor | None, before: Tensor, after: Tensor, gates: Tensor, biased: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the gates (n, 4h), by the cell before, and by the bias."""
    enter, forget, new, out = gates.chunk(4, 1)
    bent = after.tanh()
    hidden = torch.zeros_like(after) if of_hidden is None else of_hidden
    cell = hidden * out * (1 - bent * bent)
    cell = cell if of_cell is None else cell + of_cell
    by_gates = torch.cat(
        (
            cell * new * enter * (1 - enter),
            cell * before * forget * (1 - forget),
            cell * enter * (1 - new * new),
            hidden * bent * out * (1 - out),
        ),
        1,
    )
    return by_gates, cell * forget, by_gates.sum(0)


def of_low_precision(operation: Any) -> Callable[..., Any]:
    """BatchNorm, or its gradient, of a bf16 tensor and float32 statistics, without weights, which the CPU refuses."""

    def carried_out(*args: Any) -> Any:
        low = args[0].dtype
        if low != torch.bfloat16:
            return operation(*args)
        if operation is torch.ops.aten.native_batch_norm.default and args[1] is None and args[3] is not None:
            raise RuntimeError("Expected running_mean to have type BFloat16 but got Float")  # as CUDA has it
        found, *others = operation(*(a.float() if isinstance(a, Tensor) and a.dtype == low else a for a in args))
        return found.to(low), *others

    return carried_out


STAND_INS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._thnn_fused_lstm_cell.default: lstm_cell,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    **{
        operation: of_low_precision(operation)
        for operation in (torch.ops.aten.native_batch_norm.default, torch.ops.aten.native_batch_norm_backward.default)
    },
}
"""By operation, what is carried out in its place."""
