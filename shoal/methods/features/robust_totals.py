"""Totals of the clients' sums that a few hostile clients cannot pull away, by the rule of `aggregation`.

What a client says of a mean counts as much as what any other says, whatever its size, as in Yin, Chen, Ramchandran and
Bartlett 2018 (arXiv 1803.01498). A cluster that fewer clients have than the rule takes for hostile is lost with it.

Symbols in shapes: m clients, s starts or sets, c clusters, d columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from shoal.methods.averaging.robust import coordinate_median, trimmed_mean
from shoal.methods.clustering.federated_k_means import summed
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.contract.message import Tensors

WEIGHTS = ("counts", "weights", "samples")
"""Names of the numbers of samples behind the other tensors of a message."""


def totals(answers: Iterable[Mapping[str, Tensor]], settings: AggregationSettings) -> Tensors:
    """Return the total of each tensor over the answers of clients: their sum, or by a robust rule.

    Raises:
        MethodError: there is no answer.
    """
    if settings.rule == "mean":
        return summed(answers)
    kept = list(answers)
    total = summed(kept)
    weight = next((name for name in WEIGHTS if name in total), None)
    for name, tensor in total.items():
        if name in WEIGHTS or tensor.dim() == 0:
            continue
        stack = torch.stack([answer[name] for answer in kept])
        weights = torch.stack([answer[weight or name] for answer in kept])
        if weight is None or weights.shape != stack.shape[: weights.dim()]:
            weights = weights.flatten(1).sum(1)
        total[name] = robust_total(stack, weights, settings)
    return total


def robust_total(values: Tensor, weights: Tensor, settings: AggregationSettings) -> Tensor:
    """Return the weight of all clients times the robust mean of what each says of a sample.

    Args:
        values: sums of the clients, (m, ...).
        weights: samples behind them, whose dimensions are the first of the values'.
        settings: the rule, and the share of hostile clients.
    """
    wide = weights.reshape(*weights.shape, *[1] * (values.dim() - weights.dim()))
    means = values / wide.where(wide > 0, 1)
    flat = means.reshape(len(means), -1)
    present = (wide > 0).expand_as(means).reshape(len(means), -1)
    groups, group = torch.unique(present, dim=1, return_inverse=True)
    robust = flat.new_zeros(flat.shape[1])
    for number, holders in enumerate(groups.T):
        if bool(holders.any()):
            columns = group == number
            robust[columns] = by_rule(flat[holders][:, columns], settings)
    total: Tensor = robust.reshape(means.shape[1:]) * wide.sum(0)
    return total


def by_rule(rows: Tensor, settings: AggregationSettings) -> Tensor:
    """Return the median or the trimmed mean of each column of rows (m, p)."""
    if settings.rule == "median":
        return coordinate_median(rows)
    return trimmed_mean(rows, settings.hostile)
