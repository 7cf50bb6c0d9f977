"""FedX's relational loss: two views of a sample have the same similarities to other samples (Han et al. 2022, eq. 4).

Shapes: n samples, m other samples, p dimensions; views a and b of a sample are rows i of two matrices.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def relational(a: Tensor, b: Tensor, others: Tensor, tau: float, tau_target: float) -> Tensor:
    """Return how far the similarities of two views to other samples are from their mean, a scalar of at least 0.

    With r(v, t) = softmax over j of cos(v, others_j) / t, and the target q = (r(a, t') + r(b, t')) / 2, it is the mean
    of KL(q | r(a, t)) and KL(q | r(b, t)) over samples. At t = t' this is the Jensen-Shannon divergence. Gradients flow
    through the target too, as in the authors' code.

    Args:
        a: (n, p), view a; normalised here.
        b: (n, p), view b.
        others: (m, p).
        tau: temperature t.
        tau_target: temperature t' of the target.
    """
    reference = F.normalize(others, dim=1).T
    similar_a = F.normalize(a, dim=1) @ reference
    similar_b = F.normalize(b, dim=1) @ reference
    target = ((similar_a / tau_target).softmax(1) + (similar_b / tau_target).softmax(1)) / 2
    from_a = F.kl_div((similar_a / tau).log_softmax(1), target, reduction="batchmean")
    from_b = F.kl_div((similar_b / tau).log_softmax(1), target, reduction="batchmean")
    return (from_a + from_b) / 2
