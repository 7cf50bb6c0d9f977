"""A champion and its challenger, judged on the same held-out samples by scores that mean the same for both.

Held out is the test part of the set as it is now: samples of it never trained either model, since the part that grows
with the set is chosen by `shoal.data.held_out`. Two kinds of scores are comparable between models: `neighbours`, which
needs no label and looks at clusters alone (`shoal.methods.scores.neighbours`); and, where the part has labels, `acc`
and `nmi`. Scores of a model's own features, such as its silhouette, are not: each has a scale of its own.
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
LEAST = 10
"""Held-out samples, at least: of fewer no score says anything."""
MOST = 5_000
"""At most so many are judged, a seeded draw: neighbours cost grows with their square."""
BATCH = 512


class JudgingError(ShoalError):
    """Two models cannot be compared."""


@dataclass(frozen=True)
class Judged:
    """A model's scores on the held-out samples.

    Args:
        run: the name of its run's folder.
        samples: how many were judged.
        scores: by name.
        clusters_used: how many clusters have any of them.
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
        promoted: it does.
        why: in one sentence.
        score: the name of the score that decided; empty where there was no champion.
        margin: by which it had to be better.
        challenger: as it was judged.
        champion: likewise; None where there was none.
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
        rows = []
        for name, new in self.challenger.scores.items():
            old = None if self.champion is None else self.champion.scores.get(name)
            decides = f" (decides, margin {self.margin:g})" if name == self.score else ""
            rows.append(
                {
                    "score": name + decides,
                    "champion": "-" if old is None else f"{old:.4f}",
                    "challenger": f"{new:.4f}",
                    "difference": "-" if old is None else f"{new - old:+.4f}",
                }
            )
        return rows


def judged(run: RunFolder, prepared: Prepared) -> Judged:
    """Return the scores of a finished run's model on the held-out samples of a set.

    Raises:
        JudgingError: the set holds too few samples out. RunError: the run gives new samples no clusters.
    """
    x, y = held_out_samples(prepared)
    predictor = Predictor(run)
    if (predictor.spec.kind, predictor.spec.shape) != (prepared.spec.kind, prepared.spec.shape):
        raise JudgingError(
            f"run {run.name} was trained on {predictor.spec.kind}s of shape {predictor.spec.shape}, and "
            f"{prepared.manifest.name!r} holds {prepared.spec.kind}s of shape {prepared.spec.shape}: they cannot be "
            "judged on it; give the models names of their own with tracking.register_as"
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
    count = 0 if prepared.test_x is None else len(prepared.test_x)
    if prepared.test_x is None or count < LEAST:
        raise JudgingError(
            f"{prepared.manifest.name!r} holds out {count} samples, and models are judged on {LEAST} at least: give it "
            "more samples, or a larger held-out part (`held_out` of a night, `--test` of `shoal data add`)"
        )
    rows = np.arange(count)
    if count > MOST:
        rows = np.sort(Streams(0).numpy("held-out samples to judge on").choice(count, MOST, replace=False))
    return np.asarray(prepared.test_x[rows]), None if prepared.test_y is None else np.asarray(prepared.test_y[rows])


def compare(
    challenger: RunFolder, champion: RunFolder | None, data: Path, score: ScoreName | Literal["auto"], margin: float
) -> Decision:
    """Judge both on the held-out samples of a set as it is now, and decide.

    Args:
        challenger: a finished run.
        champion: the run of the model in use; None where there is none: the challenger is the first.
        data: the folder of the set.
        score: the score that decides; auto: `acc` where there are labels, else `neighbours`.
        margin: by which the challenger must be better.

    Raises:
        JudgingError: too few samples are held out, or none has a label and the score needs them.
    """
    prepared = open_prepared(data)
    new = judged(challenger, prepared)
    if champion is None:
        return Decision(True, "there was no champion: this is the first", "", margin, new, None)
    if champion.name == challenger.name:
        return Decision(True, "it is the champion already", "", margin, new, new)
    name = ("acc" if "acc" in new.scores else NEIGHBOURS) if score == "auto" else score
    if name not in new.scores:
        raise JudgingError(
            f"the score {name!r} needs labels, and the held-out samples of {prepared.manifest.name!r} have none: set "
            f"the score to auto or {NEIGHBOURS}"
        )
    old = judged(champion, prepared)
    ahead = new.scores[name] - old.scores[name]
    promoted = ahead >= margin and ahead > 0
    about = f"{name} {new.scores[name]:.4f} against the champion's {old.scores[name]:.4f}: "
    if promoted:
        why = f"{about}better by {ahead:.4f}, at least the margin {margin:g}"
    else:
        how = f"better by {ahead:.4f}, less than the margin {margin:g}" if ahead > 0 else f"not better ({ahead:+.4f})"
        why = f"{about}{how}"
    return Decision(promoted, why, name, margin, new, old)
