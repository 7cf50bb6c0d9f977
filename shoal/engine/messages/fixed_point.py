"""Messages as whole numbers modulo 2^64, so that their sum has the same bits in any order, and masks can cancel in it.

For a mean of models each client sends its share of the samples times its values, in steps of 2^-40. For sums it sends
the whole part of each value, and the rest in steps of 2^-50, since sums over rows may be in any unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from shoal.engine.messages.wire import SumPlan
from shoal.methods.averaging.mean import in_dtype
from shoal.methods.clustering.federated_k_means import summed
from shoal.methods.contract.base import ClientError, Update
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message, Tensors

FEWEST_SUMMED = 3
"""Clients whose messages are added up at least: of two, each knows the other's."""
ATTEMPT = "attempt"
"""Among the facts of a part of a sum: the attempt that it belongs to."""
MEAN_STEP = 2.0**-40
REST_STEP = 2.0**-50
LARGEST = 2.0**62
"""Bound of a sum over all clients, in steps."""
REST = "/rest"
"""Ending of the names of tensors that hold what is left of values without their whole parts."""


def encoded(tensors: Mapping[str, Tensor], share: float | None, clients: int) -> Tensors:
    """Return a client's part of a sum, int64.

    Args:
        tensors: of the client's message.
        share: the client's share of all samples, where models are averaged; None: the server needs the sum.
        clients: number of clients that are added up.

    Raises:
        ClientError: a value is too large for whole numbers.
    """
    bound = LARGEST / clients if share is None else LARGEST * MEAN_STEP
    parts: Tensors = {}
    for name, tensor in tensors.items():
        values = tensor.double().cpu()
        if values.numel() and not float(values.abs().max()) <= bound:
            raise ClientError(
                f"tensor {name!r} holds {values.abs().max():g}, expected at most {bound:g} (privacy.sums)"
            )
        if share is not None:
            parts[name] = (values * (share / MEAN_STEP)).round().long()
            continue
        parts[name] = values.round().long()
        parts[name + REST] = ((values - values.round()) / REST_STEP).round().long()
    return parts


def decoded(sums: Mapping[str, Tensor], form: MessageForm, *, mean: bool) -> Tensors:
    """Return the mean of models, or the sum of messages, from the sum of all clients' parts."""
    values: Tensors = {}
    for name, of in form.tensors.items():
        total = (
            sums[name].double() * MEAN_STEP if mean else sums[name].double() + sums[name + REST].double() * REST_STEP
        )
        values[name] = in_dtype(total, of.dtype)
    return values


def form_of_part(form: MessageForm, plan: SumPlan, *, mean: bool) -> MessageForm:
    """Return the form of a client's part of a sum, in which any whole number may be, since masks hide it."""
    parts = {name: TensorForm(of.shape, torch.int64, measured=False) for name, of in form.tensors.items()}
    if not mean:
        parts |= {name + REST: part for name, part in parts.items()}
    return MessageForm(parts, {**form.facts, ATTEMPT: exactly(plan.attempt)})


def sum_of_parts(parts: Iterable[Update], form: MessageForm, plan: SumPlan, *, mean: bool) -> Iterator[Update]:
    """Yield one update in place of all clients' parts: the message that a client with all samples would send.

    Args:
        parts: of the clients of the plan.
        form: of a client's message, as its method declares it.
        plan: of the sum.
        mean: whether models are averaged.
    """
    sums = summed(update.message.tensors for update in parts)
    facts = {"n": plan.samples} if mean else {}
    yield Update(Message(decoded(sums, form, mean=mean), facts))
