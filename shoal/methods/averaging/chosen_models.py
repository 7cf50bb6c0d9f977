"""Averages of K models where each client trains the one of its choice, as IFCA does (Ghosh et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly


def declared_choice(models: Tensor, name: str, samples: int) -> MessageForm:
    """Declare a message with one model (tensor `name`), trained from any of the K, and the number of the choice.

    Args:
        models: what clients began from, (K, p).
        name: of the tensor.
        samples: number of the client's samples.
    """
    choice = FactForm(0, len(models) - 1, whole=True)
    model = TensorForm(tuple(models.shape[1:]), start=models)
    return MessageForm({name: model}, {"n": exactly(samples), "choice": choice})


def average_by_choice(
    updates: Iterable[Update], models: Tensor, name: str, settings: AggregationSettings
) -> tuple[Tensor, set[int]]:
    """Return the mean of each model over the clients that chose it, by samples, and the models that were chosen.

    A model that nobody chose stays as it is.

    Args:
        updates: of the clients, as `declared_choice` describes their messages.
        models: what they began from, (K, p).
        name: of the tensor.
        settings: the rule that takes the place of the mean.
    """
    means = [mean_by(settings, {name: model}) for model in models]
    for update in updates:
        choice = update.message.facts["choice"]
        means[choice].add(update.message.tensors, float(update.message.facts["n"]))
    averages = [mean.mean()[name] if mean.weight else model for mean, model in zip(means, models, strict=True)]
    return torch.stack(averages), {number for number, mean in enumerate(means) if mean.weight}
