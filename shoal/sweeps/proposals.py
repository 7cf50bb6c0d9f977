"""Which settings a trial has, and whether it is stopped: by Optuna, from (seed, trial) and the trials before alone.

A proposal is made on a copy of the search in memory that holds the settled trials, with a sampler whose draws follow
from the search's seed and the trial's number. So a trial that was cut short is proposed again as it was, and stopped or
not by the same rounds, whenever and wherever it is gone on with.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from shoal.core.streams import stream_seed
from shoal.sweeps.definition import SearchDefinition, SearchError, Value, Varied

if TYPE_CHECKING:  # it takes a second to import, and need not be installed
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

INSTALL = "a search over settings needs the package optuna: pip install 'shoal[search]'"
SEEDS = 2**32
"""Optuna's samplers take seeds below this."""
KEPT_SHARE = 3
"""halving: of so many trials one goes on."""


def optuna_here() -> Any:
    """The package, quiet.

    Raises:
        SearchError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise SearchError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def distribution(varied: Varied) -> BaseDistribution:
    """The values of a setting as Optuna has them."""
    distributions = optuna_here().distributions
    if varied.choices is not None:
        result: BaseDistribution = distributions.CategoricalDistribution(varied.choices)
    elif varied.whole:
        result = distributions.IntDistribution(varied.low, varied.high, log=varied.log, step=varied.step or 1)
    else:
        result = distributions.FloatDistribution(varied.low, varied.high, log=varied.log, step=varied.step)
    return result


def distributions_of(definition: SearchDefinition) -> dict[str, BaseDistribution]:
    """Those of all settings that vary, by dotted key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last step of a range may be shorter
        return {path: distribution(varied) for path, varied in definition.vary.items()}


def grid(definition: SearchDefinition) -> dict[str, list[Value]]:
    """The values of each setting whose combinations a grid is made of."""
    return {path: values_of(varied) for path, varied in definition.vary.items()}


def values_of(varied: Varied) -> list[Value]:
    """All choices; of a range, low and as many steps as it has room for.

    >>> values_of(Varied(low=0.0, high=0.3, step=0.1))
    [0.0, 0.1, 0.2, 0.3]
    """
    if varied.choices is not None:
        return list(varied.choices)
    low, high, step = varied.low, varied.high, varied.step or 1
    assert low is not None
    assert high is not None
    if varied.whole:
        return list(range(int(low), int(high) + 1, int(step)))
    # In decimals, as Optuna counts them: 0.3 is three steps of 0.1 then.
    first, last, each = (Decimal(str(number)) for number in (low, high, step))
    return [float(first + number * each) for number in range(1 + int((last - first) / each))]


def most_trials(definition: SearchDefinition) -> int:
    """How many trials there are to be: as many as asked for; of a grid, no more than it has combinations."""
    if definition.sampler != "grid":
        return definition.trials
    combinations = 1
    for values in grid(definition).values():
        combinations *= len(values)
    return min(definition.trials, combinations)


def sampler_of(definition: SearchDefinition, number: int) -> optuna.samplers.BaseSampler:
    """What draws the settings of one trial."""
    samplers = optuna_here().samplers
    seed = stream_seed(definition.seed, "search: settings of a trial", round=number) % SEEDS
    if definition.sampler == "grid":
        # Its order is drawn once: trial k takes the k-th combination.
        result: optuna.samplers.BaseSampler = samplers.GridSampler(
            grid(definition), seed=stream_seed(definition.seed, "search: grid") % SEEDS
        )
    elif definition.sampler == "random":
        result = samplers.RandomSampler(seed=seed)
    else:
        result = samplers.TPESampler(seed=seed, n_startup_trials=definition.random_trials)
    return result


def pruner_of(definition: SearchDefinition) -> optuna.pruners.BasePruner:
    """What stops runs early."""
    pruners = optuna_here().pruners
    if definition.pruner == "median":
        result: optuna.pruners.BasePruner = pruners.MedianPruner(
            definition.spare_trials, n_warmup_steps=definition.spare_rounds + 1
        )
    elif definition.pruner == "halving":
        result = pruners.SuccessiveHalvingPruner(definition.spare_rounds + 1, KEPT_SHARE)
    else:
        result = pruners.NopPruner()
    return result


@dataclass
class Proposal:
    """A trial that is to be carried out.

    Attributes:
        number: of the trial, from 0.
        values: of the settings that vary, by dotted key.
    """

    number: int
    values: dict[str, Value]
    _trial: optuna.trial.Trial

    def stop_after(self, round: int, score: float) -> bool:
        """Whether the trial is to be stopped, given its score after a round; rounds are told in order, each once."""
        self._trial.report(score, round)
        return self._trial.should_prune()

    def settled(self, state: str, score: float | None, facts: dict[str, Any]) -> FrozenTrial:
        """The trial as it is kept.

        Args:
            state: COMPLETE, PRUNED or FAIL.
            score: of a complete one.
            facts: what else is kept of it, as JSON.
        """
        optuna = optuna_here()
        known = self._trial.study.get_trials(deepcopy=True)[self.number]
        result: FrozenTrial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            value=score,
            params=known.params,
            distributions=known.distributions,
            intermediate_values=known.intermediate_values,
            user_attrs=facts,
            system_attrs=known.system_attrs,
        )
        return result


def propose(definition: SearchDefinition, settled: Sequence[FrozenTrial]) -> Proposal:
    """The next trial.

    Args:
        definition: of the search.
        settled: all trials before it, in order.
    """
    optuna = optuna_here()
    study = optuna.create_study(
        direction="maximize" if definition.maximises else "minimize",
        sampler=sampler_of(definition, len(settled)),
        pruner=pruner_of(definition),
    )
    study.add_trials(settled)
    space = distributions_of(definition)
    trial = study.ask(space)
    return Proposal(len(settled), {path: trial.params[path] for path in space}, trial)
