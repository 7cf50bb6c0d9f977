"""Precision and recall of a pool of negatives: do the pairs that it leaves out belong to one class?

Shapes: n samples; a pool is a pair of masks (n, n), of the anchors of view a and of view b, whose row i marks the
samples that anchor i is pushed away from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

DROPPED = "pool_dropped"
"""Share of all pairs of distinct samples that the pool leaves out."""
SAME = "pairs_same"
"""Share of all pairs that belong to one class."""
DROPPED_SAME = "pairs_dropped_same"
"""Share of all pairs that belong to one class and are left out."""


def distinct(rows: Tensor) -> Tensor:
    """Return the mask (n, n) of pairs of distinct rows."""
    return ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def pool_shares(pools: tuple[Tensor, Tensor], classes: Tensor | None) -> dict[str, Tensor]:
    """Return shares of the pairs of distinct samples, over the pools of both views.

    Args:
        pools: masks (n, n), from `past_negatives`.
        classes: true labels (n,), used only for judging; None where there are none.

    Returns:
        `DROPPED`; with labels also `SAME` and `DROPPED_SAME`.
    """
    if pools[0].device.type != "cpu":
        return left_out_shares(~torch.stack(pools), classes)
    others = distinct(pools[0])
    dropped = others & ~torch.stack(pools)
    pairs = 2 * len(others) * (len(others) - 1)
    shares = {DROPPED: dropped.sum() / pairs}
    if classes is not None:
        same = others & (classes[:, None] == classes[None, :])
        shares |= {SAME: 2 * same.sum() / pairs, DROPPED_SAME: (dropped & same).sum() / pairs}
    return shares


def left_out_shares(left_out: Tensor, classes: Tensor | None) -> dict[str, Tensor]:
    """Return `pool_shares` in fewer launches, which counts each sample and itself as a pair, and subtracts these.

    Args:
        left_out: masks (2, n, n) of the pairs that the pools of both views leave out, those of a sample with itself
            among them.
        classes: true labels (n,); None where there are none.
    """
    count = left_out.shape[1]
    pairs = 2 * count * (count - 1)
    counts = [left_out.sum()]
    if classes is not None:
        same = classes[:, None] == classes
        counts += [same.sum() * 2, (left_out & same).sum()]
    shares = torch.stack(counts).sub(2 * count).div(pairs).unbind()
    return dict(zip((DROPPED, SAME, DROPPED_SAME), shares, strict=False))


def pool_quality(means: Mapping[str, float]) -> dict[str, float]:
    """Return a client's metrics of a round, with precision and recall of its pool in place of the shares of pairs.

    `pool_precision`: of the pairs that the pool left out, the share of one class; absent where it left out none.
    `pool_recall`: of the pairs of one class, the share that it left out; absent where there were none.

    >>> pool_quality({"pool_dropped": 0.2, "pairs_same": 0.1, "pairs_dropped_same": 0.05})
    {'pool_dropped': 0.2, 'pool_precision': 0.25, 'pool_recall': 0.5}
    """
    found = {name: value for name, value in means.items() if name not in (SAME, DROPPED_SAME)}
    for name, whole in (("pool_precision", DROPPED), ("pool_recall", SAME)):
        if DROPPED_SAME in means and means[whole] > 0:
            found[name] = means[DROPPED_SAME] / means[whole]
    return found
