"""Hyper-parameters of CF-CL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.setting import setting
from shoal.methods.cfcl.batches import Negatives
from shoal.methods.cfcl.state import Selection


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Selection = setting(
        "cfcl",
        "how pulled samples are chosen: by importance under the last global model (cfcl) or under the receiver's local "
        "model (cfcl_local), or uniformly (uniform); none: devices exchange nothing",
    )
    steps: int = setting(2000, "total number of local steps", ge=1)
    tau_a: int = setting(25, "number of local steps between two averagings", ge=1)
    tau_p: int = setting(25, "number of local steps between two pulls", ge=1)
    loss: Literal["triplet", "simclr", "ssd", "fedcc"] = setting(
        "triplet", "local loss: triplet; FedSimCLR's NT-Xent; SSD's alignment and uniformity; FedCC's with both heads"
    )
    negatives: Negatives = setting(
        "batch",
        "negatives of triplets: the next sample of the batch (batch), any other sample that the device holds (held), "
        "or a pulled one where two or more were pulled (pulled)",
    )
    reserve: int = setting(20, "number of samples in a reserve", ge=0)
    reserve_kind: Literal["kmeans", "random"] = setting(
        "kmeans", "how the samples of a reserve are chosen: nearest to K-means centroids, or at random"
    )
    budget: int = setting(20, "number of samples pulled over each link", ge=0)
    clusters: int = setting(4, "number of clusters for macro importance", ge=1)
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting((), "links to use instead of a random graph")
    consent: tuple[tuple[int, int], ...] = setting(
        (), "(device, n): the device shares at most n samples in the whole run; 0: none"
    )
