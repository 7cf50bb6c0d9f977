"""FedPNP whose pool is judged by the labels: precision and recall of the pairs that it leaves out.

Shapes: n samples; masks (2, n, n) mark, by anchors of view a and of view b, the samples that an anchor is not pushed
away from, itself among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.fedpnp.fedpnp import FedPNP
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch

DROPPED = "pool_dropped"
"""Share of all pairs of distinct samples that the pool leaves out."""
SAME = "pairs_same"
"""Share of all pairs that belong to one class."""
DROPPED_SAME = "pairs_dropped_same"
"""Share of all pairs that belong to one class and are left out."""


class JudgedFedPNP(FedPNP):
    """FedPNP that logs precision and recall of its pool; labels are used for nothing else."""

    name = "fedpnp_judged"
    title = "FedPNP with a judged pool"
    about = "FedPNP that also logs whether the pairs that its pool leaves out belong to one class."

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take FedPNP's steps, on batches that also hold the classes."""
        steps = super().local_steps(message, client)
        if client.train.data.train_y is None:
            return steps

        def select(positions: Tensor) -> Batch:
            return *steps.select(positions), client.train.y(positions)

        def inputs(batch: Batch) -> Batch:
            *rows, classes = batch
            return *steps.inputs(tuple(rows)), classes

        def finish(taken: TakenSteps) -> Update:
            return steps.finish(replace(taken, metrics=pool_quality(taken.metrics)))

        return replace(steps, select=select, inputs=inputs, finish=finish)

    def pool_metrics(self, left_out: Tensor, batch: Batch) -> Tensors:
        """Return the shares of pairs that judge the pools."""
        return pool_shares(left_out, batch[1]) if len(batch) > 1 else super().pool_metrics(left_out, batch)


def pool_shares(left_out: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Return shares of the pairs of distinct samples, over the pools of both views.

    Args:
        left_out: masks (2, n, n).
        classes: true labels (n,).
    """
    count = left_out.shape[1]
    same = classes[:, None] == classes
    counts = [left_out.sum(), same.sum() * 2, (left_out & same).sum()]
    # Each sample and itself is left out in both views, and is no pair.
    shares = torch.stack(counts).sub(2 * count).div(2 * count * (count - 1)).unbind()
    return dict(zip((DROPPED, SAME, DROPPED_SAME), shares, strict=True))


def pool_quality(means: Mapping[str, float]) -> dict[str, float]:
    """Return a client's metrics of a round, with precision and recall of its pool in place of the shares of pairs.

    `pool_precision`: of the pairs that the pool left out, the share of one class; absent where it left out none.
    `pool_recall`: of the pairs of one class, the share that it left out; absent where there were none.

    >>> pool_quality({"pool_dropped": 0.2, "pairs_same": 0.1, "pairs_dropped_same": 0.05})
    {'pool_dropped': 0.2, 'pool_precision': 0.25, 'pool_recall': 0.5}
    """
    metrics = {name: value for name, value in means.items() if name not in (SAME, DROPPED_SAME)}
    for name, whole in (("pool_precision", DROPPED), ("pool_recall", SAME)):
        if means[whole] > 0:
            metrics[name] = means[DROPPED_SAME] / means[whole]
    return metrics
