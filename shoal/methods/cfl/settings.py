"""CFL's hyper-parameters, and the check that they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.setting import setting
from shoal.methods.cfl.adversary import AdversarySettings
from shoal.methods.contract.context import MethodError


@dataclass(frozen=True)
class CFLSettings(AdversarySettings):
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
    gamma_max: float | Literal["measured"] = setting(
        0.6,
        "split only where sqrt((1 - cross) / 2) exceeds this (eq. 39): a number of at least 0 and below 1, or "
        "measured: the median of the noise that the cluster's clients measure by training on two halves of their "
        "samples, which doubles their work in rounds that may split",
    )
    similarity: Literal["updates", "gradients", "both"] = setting(
        "updates",
        "compute cosines from updates, from full gradients, or from updates while logging the gap of gradients too",
    )
    history: float = setting(
        0.0,
        "compute cosines from each client's updates summed over rounds, discounted by this factor per round; "
        "0: from the updates of this round alone, as in the paper",
        ge=0,
        lt=1,
    )
    permute: bool = setting(False, "clients hide the order of their parameters behind a shared permutation (eq. 45)")
    presence: tuple[tuple[int, int, int], ...] = setting(
        (),
        "(client, first round, end): clients that are only present from their first round to the round before end; "
        "end 0: to the end of the run; all other clients are always present",
    )


def check_settings(settings: CFLSettings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        MethodError: names the settings and what to set instead.
    """
    gamma_max = settings.gamma_max
    if gamma_max != "measured" and not 0 <= gamma_max < 1:
        raise MethodError(
            f"method.gamma_max is {gamma_max:g}, expected a number of at least 0 and below 1, or measured"
        )
    if settings.criterion == "schedule" and not settings.schedule:
        raise MethodError("method.criterion schedule needs method.schedule: the rounds, for example [50, 100, 150]")
    if settings.history and settings.similarity == "gradients":
        raise MethodError("method.history is of updates; with method.similarity gradients set it to 0")
    if settings.history and gamma_max == "measured":
        raise MethodError(
            "method.gamma_max measured is the noise of one round's update, and method.history sums updates over "
            "rounds: set method.gamma_max to a number, or method.history to 0"
        )
