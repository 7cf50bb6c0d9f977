"""CFL whose relative criterion has settings, and which may exclude clients with long updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.measure import ClusterMeasure, stack
from shoal.methods.cfl.settings import CFLSettings
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import MethodError


@dataclass(frozen=True)
class CriteriaCFLSettings(CFLSettings):
    """Hyper-parameters of CFL, and of when it splits."""

    ratio: float = setting(
        0.3, "relative: largest ratio of the mean update's norm to the largest client update's", gt=0, le=1
    )
    patience: int = setting(3, "relative: number of rounds in a row in which the criterion must hold", ge=1)
    min_age: int = setting(10, "relative: number of rounds that a cluster trains before it may be split", ge=0)
    outliers: float = setting(
        0.0,
        "exclude a client whose update norm exceeds this multiple of its cluster's median norm; 0: no such rule",
        ge=0,
    )


@dataclass(frozen=True, eq=False)
class OutlierMeasure(ClusterMeasure):
    """The measures of one cluster, with the clients whose updates are too long; these are not logged."""

    outliers: tuple[int, ...] = ()

    def entry(self) -> dict[str, Any]:
        """Return the measures as JSON values for the server's log."""
        return {key: value for key, value in super().entry().items() if key != "outliers"}


class CriteriaCFL(CFL):
    """CFL whose criteria are settings; by default it is CFL."""

    name = "cfl_criteria"
    title = "CFL by other criteria"
    about = "CFL with further settings of when it splits."
    Settings = CriteriaCFLSettings
    settings: CriteriaCFLSettings

    def __init__(self, settings: CriteriaCFLSettings, context: Any) -> None:
        super().__init__(settings, context)
        if 0 < settings.outliers < 1:
            raise MethodError(
                f"method.outliers is {settings.outliers}: below 1 it would cut off updates shorter than the median; "
                "set 0 (no such rule) or a number above 1, for example 4"
            )
        self.ratio = settings.ratio
        self.patience = settings.patience
        self.min_age = settings.min_age

    def measure(
        self, node: int, active: list[int], by_client: Mapping[int, Update], state: CFLState, past: Tensor | None = None
    ) -> ClusterMeasure:
        """Measure one cluster as CFL does, and find its outliers."""
        measured = super().measure(node, active, by_client, state, past)
        if not self.settings.outliers:
            return measured
        norms = stack(by_client, active, "update", state.size).double().norm(dim=1)
        too_long = (norms > self.settings.outliers * measured.median_norm).tolist()
        outliers = tuple(client for client, cut in zip(active, too_long, strict=True) if cut)
        return OutlierMeasure(**vars(measured), outliers=outliers)

    def groups_to_split(
        self, tree: Tree, measure: ClusterMeasure, active: list[int], round: int, peak: float
    ) -> list[list[int]] | None:
        """Return the two groups of clients where a cluster is to be split, else None: outliers first of all."""
        groups = super().groups_to_split(tree, measure, active, round, peak)
        complete = len(active) == len(tree.nodes[measure.node].clients) > 1
        if not isinstance(measure, OutlierMeasure) or not measure.outliers or not complete:
            return groups
        return [[client for client in active if client not in measure.outliers], list(measure.outliers)]
