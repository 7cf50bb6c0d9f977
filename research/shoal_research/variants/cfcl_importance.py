"""CF-CL with other readings of its macro and micro importance (equations 8 to 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.cfcl.cfcl import CFCL
from shoal.methods.cfcl.selection import macro_probability
from shoal.methods.cfcl.settings import CFCLSettings
from shoal.methods.contract.context import MethodError

Macro = Literal["fractions", "share", "sized", "ratio"]


@dataclass(frozen=True)
class ImportanceCFCLSettings(CFCLSettings):
    """Hyper-parameters of CF-CL, and of its importance."""

    candidates: int = setting(200, "number of samples that a sender considers for a pull by importance", ge=1)
    macro: Macro = setting(
        "fractions",
        "macro importance of a cluster: f / (f + g) of its fractions of the candidates and of the reserve (fractions); "
        "the same of the counts (share); n_tx times that (sized); n_tx / n_res as printed (ratio)",
    )
    heat: tuple[float, float] = setting(
        (1.0, 5.0), "selection temperature lambda of micro importance at the first and at the last step, linear between"
    )


class ImportanceCFCL(CFCL):
    """CF-CL whose importance is a setting; by default it is CF-CL."""

    name = "cfcl_importance"
    title = "CF-CL by other importance"
    about = "CF-CL with other readings of its importance."
    Settings = ImportanceCFCLSettings
    settings: ImportanceCFCLSettings

    def __init__(self, settings: ImportanceCFCLSettings, context: Any) -> None:
        super().__init__(settings, context)
        if min(settings.heat) < 0:
            raise MethodError(f"method.heat: {list(settings.heat)} has a negative number, expected two from 0 on")
        self.considered = settings.candidates
        self.heat = settings.heat

    def macro(self, cluster_tx: Tensor, cluster_res: Tensor, clusters: int) -> Tensor:
        """Return the probability of each cluster (eq. 8, 9) by the setting `macro`."""
        if self.settings.macro == "fractions":
            return macro_probability(cluster_tx, cluster_res, clusters)
        return macro_by_counts(cluster_tx, cluster_res, clusters, self.settings.macro)


def macro_by_counts(cluster_tx: Tensor, cluster_res: Tensor, clusters: int, kind: Macro) -> Tensor:
    """Return the probability of each cluster by its counts, float64 (clusters,): high where the receiver has little.

    Args:
        cluster_tx: cluster of each candidate of the sender (n,).
        cluster_res: cluster of each sample of the receiver's reserve (r,).
        clusters: number of clusters.
        kind: `share`: n_tx / (n_tx + n_res); `sized`: n_tx times that, so that without reserves clusters are drawn by
            their size, as by a uniform pull; `ratio`: n_tx / n_res as printed, n_res at least one.
    """
    tx = torch.bincount(cluster_tx, minlength=clusters).double()
    res = torch.bincount(cluster_res, minlength=clusters).double()
    share = tx / (tx + res).clamp(min=1)
    weight = {"share": share, "sized": tx * share, "ratio": tx / res.clamp(min=1)}[kind]
    return weight / weight.sum()
