"""Hyper-parameters of CF-CL."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.setting import setting
from shoal.data.partition.topology import EDGE_LIST
from shoal.methods.cfcl.state import Selection


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Selection = setting(
        "cfcl",
        "how pulled samples are chosen: by importance (cfcl) or uniformly (uniform); none: devices exchange nothing",
    )
    steps: int = setting(2000, "total number of local steps", ge=1)
    tau_a: int = setting(25, "number of local steps between two averagings", ge=1)
    tau_p: int = setting(25, "number of local steps between two pulls", ge=1)
    reserve: int = setting(20, "number of samples in a reserve", ge=0)
    budget: int = setting(20, "number of samples pulled over each link", ge=0)
    clusters: int = setting(4, "number of clusters for macro importance", ge=1)
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting(
        (), "links to use instead of a random graph; a file name is read as an edge list", file=EDGE_LIST
    )
