"""The settings of a trial: Optuna proposes them, from (seed, trial) and the earlier trials alone.

Each trial is proposed on a copy of the search in memory that holds the settled trials, with a sampler whose draws
follow from the search's seed and the trial's number. So a trial that was cut short gets the same settings when it is
resumed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from shoal.core.streams import stream_seed
from shoal.sweeps.search.definition import SearchDefinition, SearchError, VariedSetting

if TYPE_CHECKING:  # it takes a second to import, and need not be installed
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

SEED_LIMIT = 2**32
"""Optuna's samplers take seeds below this."""


def import_optuna() -> Any:
    """Return the package optuna, without its log lines and warnings.

    Raises:
        SearchError: optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise SearchError("a search over settings needs the package optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def distribution(varied: VariedSetting) -> BaseDistribution:
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


def most_trials(definition: SearchDefinition) -> int:
    """Return the number of trials: that of the definition; of a grid at most the number of its combinations."""
    if definition.sampler != "grid":
        return definition.trials
    counts = []
    for values in distributions_of(definition).values():
        about: Any = values
        counts.append(
            len(about.choices) if hasattr(about, "choices") else 1 + round((about.high - about.low) / about.step)
        )
    return min(definition.trials, math.prod(counts))


def sampler_of(definition: SearchDefinition, number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler that draws the settings of one trial."""
    samplers = import_optuna().samplers
    seed = stream_seed(definition.seed, "search: settings of a trial", round=number) % SEED_LIMIT
    if definition.sampler == "grid":
        result: optuna.samplers.BaseSampler = samplers.BruteForceSampler(seed)
    elif definition.sampler == "random":
        result = samplers.RandomSampler(seed)
    else:
        result = samplers.TPESampler(seed=seed, n_startup_trials=definition.random_trials)
    return result


def propose(definition: SearchDefinition, settled: Sequence[FrozenTrial]) -> optuna.trial.Trial:
    """Return the next trial, which `settle` makes one of the settled ones.

    Args:
        definition: of the search.
        settled: all earlier trials, in order.
    """
    study = import_optuna().create_study(
        direction=definition.direction,
        sampler=sampler_of(definition, len(settled)),
    )
    study.add_trials(settled)
    trial: optuna.trial.Trial = study.ask(distributions_of(definition))
    return trial


def settle(
    trial: optuna.trial.Trial, state: str, scores: Sequence[float], runs: Sequence[str], why: str = ""
) -> FrozenTrial:
    """Return a trial as the store keeps it.

    Args:
        trial: from `propose`.
        state: COMPLETE or FAIL.
        scores: of its finished runs, one for each seed; the score of a complete trial is their mean.
        runs: names of their folders, and of the run that failed.
        why: why it failed.
    """
    optuna = import_optuna()
    drawn = trial.study.get_trials(deepcopy=False)[trial.number]
    result: FrozenTrial = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        value=fmean(scores) if state == "COMPLETE" else None,
        params=drawn.params,
        distributions=drawn.distributions,
        user_attrs={"scores": list(scores), "runs": list(runs), "why": why},
        system_attrs=drawn.system_attrs,
    )
    return result
