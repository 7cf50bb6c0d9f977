"""Hyper-parameters of CF-CL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.setting import setting
from shoal.data.topology import EDGE_LIST
from shoal.methods.cfcl.batches import Negatives
from shoal.methods.cfcl.selection import Macro


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Literal["cfcl", "uniform", "none"] = setting(
        "cfcl", "pulled samples: by importance, uniformly, or no exchange"
    )
    steps: int = setting(2000, "total number of local steps", ge=1)
    tau_a: int = setting(25, "local steps between two averagings", ge=1)
    tau_p: int = setting(25, "local steps between two pulls", ge=1)
    loss: Literal["triplet", "simclr", "ssd", "fedcc"] = setting(
        "triplet", "local loss: triplet; FedSimCLR's NT-Xent; SSD's alignment and uniformity; FedCC's with both heads"
    )
    margin: float = setting(1.0, "margin of the triplet loss, in training and in selection", ge=0)
    negatives: Negatives = setting(
        "batch",
        "negatives of triplets: the next sample of the batch, any other sample that the device holds, or a pulled one "
        "where two or more were pulled",
    )
    tau: float = setting(0.5, "temperature of the simclr loss, and of the instance loss of fedcc", gt=0)
    reserve: int = setting(20, "number of samples in a reserve", ge=0)
    reserve_kind: Literal["kmeans", "random"] = setting("kmeans", "how the samples of a reserve are chosen")
    candidates: int = setting(
        200, "number of samples that a transmitter considers for a pull by importance; a uniform pull is from all", ge=1
    )
    budget: int = setting(20, "number of samples pulled over each link", ge=0)
    clusters: int = setting(4, "number of clusters for macro importance", ge=1)
    macro: Macro = setting(
        "fractions",
        "macro importance of a cluster: f / (f + g) of its fractions of the candidates and of the reserve (fractions); "
        "the same of the counts (share); n_tx times that (sized); n_tx / n_res as printed (ratio)",
    )
    heat_first: float = setting(1.0, "selection temperature lambda of micro importance at the first step", ge=0)
    heat_last: float = setting(5.0, "selection temperature lambda at the last step; linear in between", ge=0)
    model: Literal["global", "local"] = setting(
        "global", "model that selects: the last global average, or the receiver's local model"
    )
    buffer: Literal["purge", "unlimited"] = setting("purge", "samples pulled earlier: dropped at a pull, or kept")
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting(
        (), "links to use instead of a random graph; a file name is read as an edge list", file=EDGE_LIST
    )
    failed: tuple[tuple[int, ...], ...] = setting(
        (), "links that carry nothing: (i, j), (i, j, from local step), or (i, j, from, to) without the last"
    )
    consent: tuple[tuple[int, int], ...] = setting(
        (), "(device, n): the device shares at most n samples in the whole run; 0: none"
    )
    probe_steps: int = setting(
        0, "Adam steps of the paper's probe (1,000), reported as probe_sgd beside the converged probe; 0: none", ge=0
    )
