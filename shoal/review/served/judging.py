"""The comparison of a champion and its challenger on the same held-out samples, by scores that fit both models.

The held-out samples are the present test part of the set. Neither model was trained on them, since
`shoal.data.held_out` chooses them as the set grows. Two kinds of scores are comparable between models: `neighbours`,
which needs no labels and only uses clusters (`shoal.methods.scores.neighbours`); and, where the part has labels, `acc`
and `nmi`. Scores of a model's own features, such as its silhouette, are not comparable: each model has its own scale.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.core.errors import ShoalError
from shoal.core.streams import Streams
from shoal.data.prepared import Prepared, open_prepared
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.clustering import accuracy, nmi
from shoal.methods.scores.neighbours import nearest_samples, neighbour_information, reference_features
from shoal.review.served.predict import Predictor

ScoreName = Literal["neighbours", "acc", "nmi"]
NEIGHBOURS = "neighbours"
MIN_SAMPLES = 10
"""Held-out samples that a comparison needs: scores of fewer say nothing."""
MAX_SAMPLES = 5_000
"""Held-out samples that are used, a seeded draw: the cost of `neighbours` grows with their square."""
BATCH = 512


class JudgingError(ShoalError):
    """Two models cannot be compared."""


@dataclass(frozen=True)
class Judged:
    """A model's scores on the held-out samples.

    Args:
        run: the name of its run's folder.
        samples: number of held-out samples.
        scores: by name.
        clusters_used: number of clusters with held-out samples.
    """

    run: str
    samples: int
    scores: dict[str, float]
    clusters_used: int

    def to_json(self) -> dict[str, Any]:
        """Return the scores as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Decision:
    """Whether the challenger takes the champion's place.

    Args:
        promoted: whether it does.
        why: the reason in one sentence.
        score: the name of the score that decided; empty where there was no champion.
        margin: by which the challenger had to be better.
        challenger: its scores.
        champion: its scores; None where there was no champion.
    """

    promoted: bool
    why: str
    score: str
    margin: float
    challenger: Judged
    champion: Judged | None

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON."""
        return asdict(self)

    def rows(self) -> list[dict[str, str]]:
        """Return the decision as a table: a row a score, with the champion's, the challenger's and their difference."""
        champion_scores: dict[str, float] = {}
        if self.champion is not None:
            champion_scores = self.champion.scores
        rows = []
        for name, new in self.challenger.scores.items():
            row = {"score": name, "champion": "-", "challenger": f"{new:.4f}", "difference": "-"}
            if name == self.score:
                row["score"] += f" (decides, margin {self.margin:g})"
            if name in champion_scores:
                old = champion_scores[name]
                row |= {"champion": f"{old:.4f}", "difference": f"{new - old:+.4f}"}
            rows.append(row)
        return rows


def judged(run: RunFolder, prepared: Prepared) -> Judged:
    """Return the scores of a finished run's model on the held-out samples of a set.

    Raises:
        JudgingError: the set holds out too few samples. RunError: the run cannot give new samples a cluster.
    """
    x, y = held_out_samples(prepared)
    predictor = Predictor(run)
    if (predictor.spec.kind, predictor.spec.shape) != (prepared.spec.kind, prepared.spec.shape):
        raise JudgingError(
            f"run {run.name} was trained on {predictor.spec.kind}s of shape {predictor.spec.shape}, and "
            f"{prepared.manifest.name!r} holds {prepared.spec.kind}s of shape {prepared.spec.shape}: give the models "
            "names of their own with tracking.register_as"
        )
    cluster = np.concatenate(
        [predictor.assign(x[start : start + BATCH])["cluster"] for start in range(0, len(x), BATCH)]
    )
    neighbours = nearest_samples(reference_features(x))
    scores = {NEIGHBOURS: neighbour_information(cluster, neighbours, predictor.clusters)}
    if y is not None:
        scores |= {"acc": accuracy(y, cluster), "nmi": nmi(y, cluster)}
    return Judged(run.name, len(x), scores, len(np.unique(cluster)))


def held_out_samples(prepared: Prepared) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the held-out samples (n, *shape) of a set and their labels, int64 (n,), where it has any.

    Raises:
        JudgingError: there are too few.
    """
    count = prepared.spec.test
    if prepared.test_x is None or count < MIN_SAMPLES:
        raise JudgingError(
            f"{prepared.manifest.name!r} holds out {count} samples, and a comparison needs at least {MIN_SAMPLES}: add "
            "samples, or hold out a larger part (`night.held_out`, `--test` of `shoal data add`)"
        )
    rows = np.arange(count)
    if count > MAX_SAMPLES:
        rows = np.sort(Streams(0).numpy("held-out samples to judge on").choice(count, MAX_SAMPLES, replace=False))
    x = np.asarray(prepared.test_x[rows])
    if prepared.test_y is None:
        return x, None
    return x, np.asarray(prepared.test_y[rows])


def compare(
    challenger: RunFolder, champion: RunFolder | None, data: Path, score: ScoreName | Literal["auto"], margin: float
) -> Decision:
    """Score both models on the present held-out samples of a set, and decide.

    Args:
        challenger: a finished run.
        champion: the run of the model in use; None where the challenger is the first model.
        data: the folder of the set.
        score: the score that decides; auto: `acc` where there are labels, else `neighbours`.
        margin: by which the challenger must be better.

    Raises:
        JudgingError: too few samples are held out, or the score needs labels and they have none.
    """
    prepared = open_prepared(data)
    new = judged(challenger, prepared)
    if champion is None:
        return Decision(True, "there was no champion: this is the first", "", margin, new, None)
    if champion.name == challenger.name:
        return Decision(True, "it is the champion already", "", margin, new, new)
    name: str = score
    if score == "auto":
        name = "acc" if "acc" in new.scores else NEIGHBOURS
    if name not in new.scores:
        raise JudgingError(
            f"the score {name!r} needs labels, and the held-out samples of {prepared.manifest.name!r} have none: set "
            f"night.score to auto or {NEIGHBOURS}"
        )
    old = judged(champion, prepared)
    ahead = new.scores[name] - old.scores[name]
    promoted = ahead >= margin and ahead > 0
    if promoted:
        outcome = f"better by {ahead:.4f}, at least the margin {margin:g}"
    elif ahead > 0:
        outcome = f"better by {ahead:.4f}, less than the margin {margin:g}"
    else:
        outcome = f"not better ({ahead:+.4f})"
    why = f"{name} {new.scores[name]:.4f} against the champion's {old.scores[name]:.4f}: {outcome}"
    return Decision(promoted, why, name, margin, new, old)
