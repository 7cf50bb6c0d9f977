"""The settings of a trial, and whether it is stopped: Optuna decides, from (seed, trial) and the earlier trials alone.

Each proposal is made on a copy of the search in memory that holds the settled trials, with a sampler whose draws follow
from the search's seed and the trial's number. So a trial that was cut short gets the same settings when it is resumed,
and stops or not after the same rounds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from shoal.core.streams import stream_seed
from shoal.sweeps.search.definition import SearchDefinition, SearchError, Value, Varied

if TYPE_CHECKING:  # it takes a second to import, and need not be installed
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

INSTALL = "a search over settings needs the package optuna: pip install optuna"
SEED_LIMIT = 2**32
"""Optuna's samplers take seeds below this."""
HALVING_FACTOR = 3
"""halving: one trial of so many continues."""


def import_optuna() -> Any:
    """Return the package optuna, without its log lines and warnings.

    Raises:
        SearchError: optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise SearchError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def distribution(varied: Varied) -> BaseDistribution:
    """Return the values of a setting as a distribution of Optuna."""
    distributions = import_optuna().distributions
    if varied.choices is not None:
        result: BaseDistribution = distributions.CategoricalDistribution(varied.choices)
    elif varied.whole:
        result = distributions.IntDistribution(varied.low, varied.high, log=varied.log, step=varied.step or 1)
    else:
        result = distributions.FloatDistribution(varied.low, varied.high, log=varied.log, step=varied.step)
    return result


def distributions_of(definition: SearchDefinition) -> dict[str, BaseDistribution]:
    """Return the distribution of each setting that varies, by dotted key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last step of a range may be shorter
        return {path: distribution(varied) for path, varied in definition.vary.items()}


def grid(definition: SearchDefinition) -> dict[str, list[Value]]:
    """Return the values of each setting, whose combinations make the grid."""
    return {path: grid_values(varied) for path, varied in definition.vary.items()}


def grid_values(varied: Varied) -> list[Value]:
    """Return all choices, or the values of a range: low, and as many steps as fit.

    >>> grid_values(Varied(low=0.0, high=0.3, step=0.1))
    [0.0, 0.1, 0.2, 0.3]
    """
    if varied.choices is not None:
        return list(varied.choices)
    low = varied.low
    high = varied.high
    step = varied.step or 1
    assert low is not None
    assert high is not None
    if varied.whole:
        return list(range(int(low), int(high) + 1, int(step)))
    # In decimals, as Optuna counts: then 0.3 is three steps of 0.1.
    first, last, distance = (Decimal(str(number)) for number in (low, high, step))
    return [float(first + number * distance) for number in range(1 + int((last - first) / distance))]


def most_trials(definition: SearchDefinition) -> int:
    """Return the number of trials: that of the definition; of a grid at most the number of its combinations."""
    if definition.sampler != "grid":
        return definition.trials
    return min(definition.trials, math.prod(len(values) for values in grid(definition).values()))


def sampler_of(definition: SearchDefinition, number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler that draws the settings of one trial."""
    samplers = import_optuna().samplers
    seed = stream_seed(definition.seed, "search: settings of a trial", round=number) % SEED_LIMIT
    if definition.sampler == "grid":
        # The order is drawn once: trial k takes the k-th combination.
        result: optuna.samplers.BaseSampler = samplers.GridSampler(
            grid(definition), seed=stream_seed(definition.seed, "search: grid") % SEED_LIMIT
        )
    elif definition.sampler == "random":
        result = samplers.RandomSampler(seed=seed)
    else:
        result = samplers.TPESampler(seed=seed, n_startup_trials=definition.random_trials)
    return result


def pruner_of(definition: SearchDefinition) -> optuna.pruners.BasePruner:
    """Return the pruner, which decides when a run is stopped early."""
    pruners = import_optuna().pruners
    if definition.pruner == "median":
        result: optuna.pruners.BasePruner = pruners.MedianPruner(
            definition.spare_trials, n_warmup_steps=definition.spare_rounds + 1
        )
    elif definition.pruner == "halving":
        result = pruners.SuccessiveHalvingPruner(definition.spare_rounds + 1, HALVING_FACTOR)
    else:
        result = pruners.NopPruner()
    return result


@dataclass
class Proposal:
    """A trial to execute.

    Attributes:
        number: of the trial, from 0.
        values: of the settings that vary, by dotted key.
    """

    number: int
    values: dict[str, Value]
    _trial: optuna.trial.Trial

    def stop_after(self, round: int, score: float) -> bool:
        """Return whether to stop the trial, given its score after a round; call it for each round in order, once."""
        self._trial.report(score, round)
        return self._trial.should_prune()

    def to_stored(self, state: str, score: float | None, facts: dict[str, Any]) -> FrozenTrial:
        """Return the trial as the store keeps it.

        Args:
            state: COMPLETE, PRUNED or FAIL.
            score: of a complete trial; else None.
            facts: what else the store keeps, as JSON.
        """
        optuna = import_optuna()
        trial = self._trial.study.get_trials(deepcopy=True)[self.number]
        result: FrozenTrial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            value=score,
            params=trial.params,
            distributions=trial.distributions,
            intermediate_values=trial.intermediate_values,
            user_attrs=facts,
            system_attrs=trial.system_attrs,
        )
        return result


def propose(definition: SearchDefinition, settled: Sequence[FrozenTrial]) -> Proposal:
    """Return the next trial.

    Args:
        definition: of the search.
        settled: all earlier trials, in order.
    """
    optuna = import_optuna()
    study = optuna.create_study(
        direction="maximize" if definition.maximises else "minimize",
        sampler=sampler_of(definition, len(settled)),
        pruner=pruner_of(definition),
    )
    study.add_trials(settled)
    space = distributions_of(definition)
    trial = study.ask(space)
    return Proposal(len(settled), {path: trial.params[path] for path in space}, trial)
