"""Differentially private updates: what a client changes is clipped, and noise is added before it leaves.

A client's message holds weights; what tells of its samples is their difference from those that it was sent. That
difference, all floating-point tensors together, is scaled down to a length of at most `clip`, and every value of it
gets Gaussian noise of standard deviation `noise` x `clip`. Whole numbers (BatchNorm's counts of batches) leave as they
came.

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
    """The message as it may leave.

    Args:
        message: of an averaging method: its tensors by the names of those that the client was sent.
        sent: what the client was sent.
        clip: largest length (L2) of the difference, above 0.
        noise: standard deviation of the noise as a multiple of `clip`.
        normal: draws standard normal values: `secret_normal`, of which nobody can repeat a value.

    Raises:
        ClientError: the message has other tensors than the client was sent.
    """
    if message.tensors.keys() - sent.keys() or message.samples:
        odd = sorted({*(message.tensors.keys() - sent.keys()), *message.samples})
        raise ClientError(f"a private update is the difference from what was sent, which had no {', '.join(odd[:3])}")
    differences = {
        name: tensor.cpu().double() - sent[name].cpu().double()
        for name, tensor in message.tensors.items()
        if tensor.is_floating_point()
    }
    length = torch.stack([difference.norm() for difference in differences.values()]).norm() if differences else 0.0
    scale = min(1.0, clip / max(float(length), 1e-300))
    private = {}
    for name in sorted(message.tensors):
        tensor, before = message.tensors[name], sent[name].cpu()
        if name not in differences:
            private[name] = before.to(tensor.dtype)
            continue
        drawn = normal(tensor.shape) * (noise * clip)
        left = before.double() + scale * differences[name] + drawn
        if name.endswith("running_var"):
            left = left.clamp_min(0)  # after the noise: nothing more is told by it
        private[name] = left.to(tensor.dtype)
    return Message({name: private[name] for name in message.tensors}, message.facts)
