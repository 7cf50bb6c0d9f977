"""CFL's hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.setting import setting


@dataclass(frozen=True)
class CFLSettings:
    """Hyper-parameters of CFL."""

    criterion: Literal["absolute", "relative", "schedule"] = setting(
        "relative",
        "when a cluster may be split: absolute, |mean| < eps1 and max > eps2; relative, |mean| / max < 0.3 in three "
        "rounds in a row, from the tenth on; schedule, in given rounds",
    )
    eps1: float = setting(0.4, "absolute: a cluster may be split where the norm of its mean update is below this", gt=0)
    eps2: float = setting(
        1.6, "absolute: a cluster may be split where its largest client update has a norm above this", ge=0
    )
    floor: float = setting(
        0.5, "relative: the largest norm must exceed this share of the largest median norm so far", ge=0, le=1
    )
    schedule: tuple[int, ...] = setting((), "schedule: the rounds at the end of which clusters may be split")
    gamma_max: float = setting(0.6, "split only where sqrt((1 - cross) / 2) exceeds this (eq. 39)", ge=0, lt=1)
    permute: bool = setting(False, "clients hide the order of their parameters behind a shared permutation (eq. 45)")
