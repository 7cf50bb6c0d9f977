"""Differentially private updates: a client's change is clipped, and noise is added before it leaves the client.

A client's message holds weights, whose difference from the broadcast weights depends on its samples. That difference,
over all floating-point tensors together, is scaled down to a length of at most `clip`, and every value of it gets
Gaussian noise of standard deviation `noise` x `clip`. Whole numbers (BatchNorm's counts of batches) leave as they came.

Source: McMahan, Ramage, Talwar, Zhang 2018, algorithm 1 (clipping of a whole client's update); Dwork and Roth 2014,
appendix A (the Gaussian mechanism).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.methods.averaging.noise import Normal
from shoal.methods.contract.base import ClientError
from shoal.methods.contract.message import Message


def private_message(message: Message, sent: Mapping[str, Tensor], clip: float, noise: float, normal: Normal) -> Message:
    """Return the message that may leave the client, with its change clipped and noise added.

    Args:
        message: of an averaging method: its tensors have the names of those that the client was sent.
        sent: the tensors that the client was sent.
        clip: largest length (L2) of the difference, above 0.
        noise: standard deviation of the noise as a multiple of `clip`.
        normal: draws standard normal values; `secret_normal`, whose values cannot be repeated.

    Raises:
        ClientError: the message has other tensors than the client was sent.
    """
    if message.tensors.keys() - sent.keys() or message.samples:
        extra = sorted({*(message.tensors.keys() - sent.keys()), *message.samples})
        raise ClientError(
            "a private update may only hold tensors that the client was sent, and this one also holds "
            f"{', '.join(extra[:3])}"
        )
    differences = {
        name: tensor.cpu().double() - sent[name].cpu().double()
        for name, tensor in message.tensors.items()
        if tensor.is_floating_point()
    }
    length = torch.stack([difference.norm() for difference in differences.values()]).norm() if differences else 0.0
    scale = min(1.0, clip / max(float(length), 1e-300))
    private = {}
    for name in sorted(message.tensors):
        tensor = message.tensors[name]
        before = sent[name].cpu()
        if name not in differences:
            private[name] = before.to(tensor.dtype)
            continue
        drawn = normal(tensor.shape) * (noise * clip)
        noisy = before.double() + scale * differences[name] + drawn
        if name.endswith("running_var"):
            noisy = noisy.clamp_min(0)  # after the noise, so that it reveals nothing more
        private[name] = noisy.to(tensor.dtype)
    return Message({name: private[name] for name in message.tensors}, message.facts)


def noisy_sums(message: Message, bounds: Mapping[str, float], noise: float, normal: Normal) -> Message:
    """Return a message of sums with noise, which shares its budget evenly among its tensors.

    Args:
        message: sums of rows.
        bounds: how long a change one unit makes to each tensor.
        noise: standard deviation of the noise as a multiple of what a unit changes in all.
        normal: draws standard normal values.
    """
    share = noise * len(bounds) ** 0.5
    tensors = {name: t + share * bounds[name] * normal(t.shape) for name, t in sorted(message.tensors.items())}
    return Message(tensors, message.facts)
