"""What a search came to: its trials, the best settings, and how far the numbers can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shoal.sweeps.definition import SearchDefinition, Value
from shoal.sweeps.noise import Noise, noise_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
STATES = {"COMPLETE": FINISHED, "PRUNED": STOPPED, "FAIL": FAILED}
"""Optuna's words, and those of runs."""


@dataclass(frozen=True)
class TrialRow:
    """One trial.

    Attributes:
        number: of the trial, from 0.
        state: finished, stopped or failed.
        values: of the settings that vary, by dotted key.
        score: of a finished trial, the mean over seeds.
        scores: of its finished runs, a seed each.
        curve: scores of the run of the first seed, by round; not of a failed trial's other runs.
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


@dataclass(frozen=True)
class SearchResult:
    """What a search came to so far.

    Attributes:
        search: its name.
        score: what it judges by.
        uses_labels: whether that score looks at labels.
        maximises: whether a higher score is better.
        trials: all settled trials, by number.
        best: number of the best finished trial, the earliest of equals; None where none is finished.
        noise: how far scores differ from seed to seed; None where that is not known.
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
        return None if self.best is None else self.trials[self.best]

    def counts(self) -> dict[str, int]:
        """How many trials are finished, stopped and failed."""
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES.values()}

    def level_with_best(self) -> list[TrialRow]:
        """Other finished trials whose score differs from the best one by no more than seeds may explain."""
        best = self.best_trial
        if best is None or best.score is None or self.noise is None:
            return []
        return [
            trial
            for trial in self.finished
            if trial is not best and trial.score is not None and abs(trial.score - best.score) <= self.noise.difference
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def ranked(result: SearchResult) -> list[TrialRow]:
    """Finished trials from the best to the worst, then the others by number."""
    sign = -1 if result.maximises else 1
    finished = sorted(result.finished, key=lambda trial: (sign * (trial.score or 0.0), trial.number))
    return [*finished, *(trial for trial in result.trials if trial not in finished)]


def row_of(number: int, trial: FrozenTrial) -> TrialRow:
    """A settled trial of the store."""
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


def result_of(definition: SearchDefinition, trials: Sequence[FrozenTrial], folder: str) -> SearchResult:
    """The result of the settled trials."""
    rows = tuple(row_of(*each) for each in enumerate(trials))
    finished = [row for row in rows if row.score is not None and math.isfinite(row.score)]
    sign = -1 if definition.maximises else 1
    best = min(finished, key=lambda row: (sign * (row.score or 0.0), row.number), default=None)
    return SearchResult(
        definition.name,
        definition.score,
        definition.uses_labels,
        definition.maximises,
        rows,
        None if best is None else best.number,
        noise_of([row.scores for row in finished]),
        folder,
    )
