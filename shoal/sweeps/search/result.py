"""The result of a search: its trials, the best settings, and how far scores differ by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.engine.settings.merge import merge
from shoal.sweeps.search.definition import SILHOUETTE, SearchDefinition, Value, nested_setting

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FINISHED = "finished"
FAILED = "failed"
STATES = {"COMPLETE": FINISHED, "FAIL": FAILED}
"""States of a trial: Optuna's word, and ours."""


@dataclass(frozen=True)
class TrialRow:
    """One trial.

    Attributes:
        number: of the trial, from 0.
        state: finished or failed.
        values: of the settings that vary, by dotted key.
        score: the mean over seeds; None unless the trial is finished.
        scores: of its finished runs, one for each seed.
        runs: names of the runs' folders.
        why: why it failed.
    """

    number: int
    state: str
    values: dict[str, Value]
    score: float | None
    scores: tuple[float, ...]
    runs: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class SearchResult:
    """The result of a search so far.

    Attributes:
        search: its name.
        score: the name of the score.
        trials: all settled trials, by number.
        ranking: their numbers: the finished ones from the best to the worst, then the others.
        best: number of the best finished trial, the earliest of equals; None where no trial is finished.
        noise: `noise_of` the finished trials.
        folder: of the search.
    """

    search: str
    score: str
    trials: tuple[TrialRow, ...]
    ranking: tuple[int, ...]
    best: int | None
    noise: float | None
    folder: str

    @property
    def finished(self) -> list[TrialRow]:
        """The trials with a score."""
        return [trial for trial in self.trials if trial.score is not None]

    @property
    def ranked(self) -> list[TrialRow]:
        """Finished trials from the best to the worst, then the others by number."""
        return [self.trials[number] for number in self.ranking]

    @property
    def best_trial(self) -> TrialRow | None:
        """The best finished trial."""
        return None if self.best is None else self.trials[self.best]

    def counts(self) -> dict[str, int]:
        """Return how many trials are finished and failed."""
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES.values()}

    def summary(self) -> str:
        """Return the counts in words, such as `3 finished, 1 failed`."""
        return ", ".join(f"{count} {state}" for state, count in self.counts().items() if count)

    def level_with_best(self) -> list[TrialRow]:
        """Return the other finished trials whose score differs from the best by no more than seeds may explain."""
        best = self.best_trial
        if best is None or best.score is None or self.noise is None:
            return []
        others = (trial for trial in self.finished if trial is not best)
        return [trial for trial in others if abs((trial.score or 0.0) - best.score) <= self.noise]

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries and lists of JSON values."""
        return asdict(self)


def row_from_trial(number: int, trial: FrozenTrial) -> TrialRow:
    """Return a settled trial of the store as a row."""
    facts = trial.user_attrs
    return TrialRow(
        number,
        STATES[trial.state.name],
        dict(trial.params),
        trial.value if trial.state.name == "COMPLETE" else None,
        tuple(facts["scores"]),
        tuple(facts["runs"]),
        facts["why"],
    )


def result_from_trials(definition: SearchDefinition, trials: Sequence[FrozenTrial], folder: str) -> SearchResult:
    """Return the result of the settled trials, which lie in a folder."""
    rows = tuple(row_from_trial(number, trial) for number, trial in enumerate(trials))
    finished = [row for row in rows if row.score is not None]
    finished.sort(key=lambda row: row.score or 0.0, reverse=definition.maximises)
    others = [row.number for row in rows if row.score is None]
    return SearchResult(
        search=definition.name,
        score=definition.score,
        trials=rows,
        ranking=(*(row.number for row in finished), *others),
        best=finished[0].number if finished else None,
        noise=noise_of([row.scores for row in rows if row.score is not None]),
        folder=folder,
    )


def best_settings(definition: SearchDefinition, best: TrialRow) -> dict[str, Any]:
    """Return the settings of the best trial's first run, as a settings file has them."""
    return merge(definition.settings, *(nested_setting(path, value) for path, value in best.values.items()))


def noise_of(scores: Sequence[Sequence[float]]) -> float | None:
    """Return the difference below which two trials cannot be told apart: two standard errors from seed to seed.

    What a seed does to all trials alike is no noise between them (a two-way layout without interaction).

    Args:
        scores: (trials, seeds), the same seeds in all trials.

    Returns:
        None with one seed, or fewer than two trials: then the noise is unknown.
    """
    if len(scores) < 2 or len(scores[0]) < 2:
        return None
    table = np.asarray(scores, dtype=float)
    trials, seeds = table.shape
    residuals = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    variance = (residuals**2).sum() / ((trials - 1) * (seeds - 1))
    return float(2 * np.sqrt(2 * variance / seeds))


def value_in_words(value: Value) -> str:
    """Return a setting's value as people read it, with four digits.

    >>> value_in_words(0.000123456), value_in_words(None), value_in_words(True), value_in_words(64)
    ('0.0001235', 'none', 'true', '64')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def caveats(definition: SearchDefinition, result: SearchResult) -> list[str]:
    """Return what a reader must know before trusting the result, a paragraph each."""
    sentences = []
    if definition.uses_labels:
        sentences.append(f"The score {result.score} uses labels: without labels this search cannot be made.")
    if result.score == SILHOUETTE:
        sentences.append(
            "Silhouette is computed in each model's own features, which the settings change: a network that maps all "
            "samples to a few points has a high one. Look at the clusters of the best run before you use its settings."
        )
    sentences.append(noise_sentence(result))
    return sentences


def noise_sentence(result: SearchResult) -> str:
    """Return how far scores differ by the seed alone, and which trials are as good as the best."""
    noise = result.noise
    if noise is None:
        return (
            "Each trial is one run, so it is not known how far scores differ by the seed alone; a search with seeds: 3 "
            "measures it. A small difference between two trials says nothing."
        )
    level = "no other trial is so close"
    if equals := result.level_with_best():
        level = f"as good as the best by that measure are trials {', '.join(str(trial.number) for trial in equals)}"
    return (
        f"Two trials whose scores are closer than {noise:.2g}, twice the standard error of a difference from seed to "
        f"seed, cannot be told apart; {level}."
    )
