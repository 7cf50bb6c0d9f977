"""Planted adversaries: the last clients of a federation send updates that they have not learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch

Attack = Literal["random", "flip", "scale", "zeros", "collude", "labels"]
SCALE_FACTOR = 10.0
"""The attack `scale` multiplies an update by this."""


@dataclass(frozen=True)
class AdversarySettings:
    """Planted adversaries of a supervised method."""

    adversaries: tuple[Attack, ...] = setting(
        (),
        "attacks of planted adversaries, one for each of the last clients: random, noise as long as the update; flip, "
        "its negative; scale, ten times the update; zeros, a model of zeros; collude, the same noise for all "
        "adversaries and rounds; labels, what the client learned from labels in reverse order",
    )


def attack_of(client: int, clients: int, adversaries: Sequence[Attack]) -> Attack | None:
    """Return the attack of a client; None for an honest one. The adversaries are the last of `clients` clients."""
    place = client - (clients - len(adversaries))
    return adversaries[place] if place >= 0 else None


def corrupt(update: Tensor, attack: Attack, streams: Streams, start: Tensor) -> Tensor:
    """Return what an adversary sends in place of its honest update (p,).

    Args:
        update: the honest update. With the attack `labels` it is sent unchanged: the client trained on false labels.
        attack: which attack.
        streams: of the client in this round.
        start: the model that the client began from (p,).
    """
    if attack in ("random", "collude"):
        shared = Streams(streams.seed).torch("colluding adversaries")
        generator = streams.torch("adversary") if attack == "random" else shared
        noise = torch.randn(update.shape, generator=generator).to(update)
        result: Tensor = noise * (update.norm() / noise.norm())
        return result
    if attack == "zeros":
        return -start
    if attack == "labels":
        return update
    return -update if attack == "flip" else update * SCALE_FACTOR


def check_adversaries(adversaries: Sequence[Attack], context: Context) -> None:
    """Refuse an attack that the data has no labels for.

    Raises:
        MethodError: the attack `labels` on texts.
    """
    if context.spec.kind == "text" and "labels" in adversaries:
        raise MethodError("the attack labels in method.adversaries needs labelled images: choose another for texts")


def attacked_steps(
    steps: LocalSteps, attack: Attack, name: str, start: Tensor, context: Context, *, difference: bool
) -> LocalSteps:
    """Return an adversary's steps: honest ones, of which it sends something else.

    Args:
        steps: the honest ones.
        attack: which attack.
        name: of the tensor that it sends.
        start: the model that it began from, (p,).
        context: of the run.
        difference: whether the tensor is an update, not the trained model.
    """
    client = steps.client
    origin = torch.zeros_like(start) if difference else start

    def select(positions: Tensor) -> Batch:
        raw, y = steps.select(positions)
        return raw, context.clusters - 1 - y

    def finish(taken: TakenSteps) -> Update:
        update = steps.finish(taken)
        tensors = update.message.tensors
        sent = origin + corrupt(tensors[name] - origin, attack, client.streams, start)
        metrics = update.metrics
        if "norm" in metrics:
            metrics = {**metrics, "norm": float(sent.double().norm())}
        return replace(update, message=replace(update.message, tensors={**tensors, name: sent}), metrics=metrics)

    return replace(steps, select=select if attack == "labels" else steps.select, finish=finish)
