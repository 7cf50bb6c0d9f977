"""The result of a search: its trials, the best settings, and how far scores differ by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shoal.engine.settings.merge import merge
from shoal.sweeps.search.definition import SearchDefinition, SearchError, Value, nested_setting
from shoal.sweeps.search.noise import Noise, noise_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"
STATES = {"COMPLETE": FINISHED, "PRUNED": STOPPED, "FAIL": FAILED}
"""States of a trial: Optuna's word, and ours."""


@dataclass(frozen=True)
class TrialRow:
    """One trial.

    Attributes:
        number: of the trial, from 0.
        state: finished, stopped or failed.
        values: of the settings that vary, by dotted key.
        score: the mean over seeds; None unless the trial is finished.
        scores: of its finished runs, one for each seed.
        curve: scores of the run of the first seed, by round; of a failed trial, those of that run alone.
        runs: names of the runs' folders.
        why: why it was stopped or failed.
    """

    number: int
    state: str
    values: dict[str, Value]
    score: float | None
    scores: tuple[float, ...]
    curve: dict[int, float]
    runs: tuple[str, ...]
    why: str

    @property
    def last_score(self) -> float | None:
        """The last score of the trial: after all its rounds, or when it was stopped; None where it has none."""
        if self.score is not None:
            return self.score
        if self.curve:
            return list(self.curve.values())[-1]
        return None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search so far.

    Attributes:
        search: its name.
        score: the name of the score.
        uses_labels: whether that score needs labels.
        maximises: whether a higher score is better.
        trials: all settled trials, by number.
        best: number of the best finished trial, the earliest of equals; None where no trial is finished.
        noise: how far scores differ from seed to seed; None with one seed, or fewer than two finished trials.
        folder: of the search.
    """

    search: str
    score: str
    uses_labels: bool
    maximises: bool
    trials: tuple[TrialRow, ...]
    best: int | None
    noise: Noise | None
    folder: str

    @property
    def finished(self) -> list[TrialRow]:
        """The trials with a score."""
        return [trial for trial in self.trials if trial.state == FINISHED]

    @property
    def best_trial(self) -> TrialRow | None:
        """The best finished trial."""
        if self.best is None:
            return None
        return self.trials[self.best]

    def counts(self) -> dict[str, int]:
        """Return how many trials are finished, stopped and failed."""
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES.values()}

    def summary(self) -> str:
        """Return the counts in words, such as `3 finished, 1 stopped`."""
        return ", ".join(f"{count} {state}" for state, count in self.counts().items() if count)

    def level_with_best(self) -> list[TrialRow]:
        """Return the other finished trials whose score differs from the best by no more than seeds may explain."""
        best = self.best_trial
        if best is None or best.score is None or self.noise is None:
            return []
        return [
            trial
            for trial in self.finished
            if trial is not best and trial.score is not None and abs(trial.score - best.score) <= self.noise.difference
        ]

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries and lists of JSON values."""
        return asdict(self)


def best_first(trials: Sequence[TrialRow], *, maximises: bool) -> list[TrialRow]:
    """Return the trials with a score from the best to the worst, equals by number."""
    scored = [trial for trial in trials if trial.score is not None]
    return sorted(scored, key=lambda trial: trial.score or 0.0, reverse=maximises)


def ranked(result: SearchResult) -> list[TrialRow]:
    """Return finished trials from the best to the worst, then the others by number."""
    finished = best_first(result.trials, maximises=result.maximises)
    return [*finished, *(trial for trial in result.trials if trial not in finished)]


def row_from_trial(number: int, trial: FrozenTrial) -> TrialRow:
    """Return a settled trial of the store as a row."""
    facts = trial.user_attrs
    return TrialRow(
        number,
        STATES[trial.state.name],
        dict(trial.params),
        trial.value if trial.state.name == "COMPLETE" else None,
        tuple(facts["scores"]),
        dict(sorted(trial.intermediate_values.items())),
        tuple(facts["runs"]),
        facts["why"],
    )


def result_from_trials(definition: SearchDefinition, trials: Sequence[FrozenTrial], folder: str) -> SearchResult:
    """Return the result of the settled trials, which lie in a folder."""
    rows = tuple(row_from_trial(number, trial) for number, trial in enumerate(trials))
    finished = best_first(rows, maximises=definition.maximises)
    return SearchResult(
        search=definition.name,
        score=definition.score,
        uses_labels=definition.uses_labels,
        maximises=definition.maximises,
        trials=rows,
        best=finished[0].number if finished else None,
        noise=noise_of([row.scores for row in rows if row.score is not None]),
        folder=folder,
    )


def best_settings(definition: SearchDefinition, result: SearchResult) -> dict[str, Any]:
    """Return the settings of the best trial's first run, as a settings file has them.

    Raises:
        SearchError: no trial has a score.
    """
    best = result.best_trial
    if best is None:
        raise SearchError(f"search {result.search!r}: no trial has a score")
    return merge(definition.settings, *(nested_setting(path, value) for path, value in best.values.items()))
