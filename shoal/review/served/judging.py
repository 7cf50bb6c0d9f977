"""The comparison of a champion and its challenger on the same held-out samples, by scores that fit both models.

The held-out samples are the present test part of the set. Neither model was trained on them, since
samples stay on their side as the set grows. Two kinds of scores are comparable between models:
`neighbours`, which needs no labels and only uses clusters (`shoal.methods.scores.neighbours`); and, where the part has
labels, `acc`. Samples are neighbours by pixels or columns; for models that see images through a pretrained
encoder by pixels and its features side by side. Scores of a model's own features, such as its silhouette, are not
comparable: each model has its own scale.

The challenger is better where two things hold: its score is above the champion's by the margin, which says how much a
change of model must be worth; and the interval of that difference lies above 0, which says that other held-out samples
would not have decided otherwise. The interval comes from paired draws of the held-out samples
(`shoal.methods.scores.resampling`). Few samples give a wide interval, so that the champion stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from shoal.core.errors import ShoalError
from shoal.data.sets.by_client import is_by_client
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.engine.sites.held_out import CONFIDENCE, NEIGHBOURS, HeldOutClusters, held_out_rows
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.null_baselines import encoded
from shoal.methods.registry import METHODS
from shoal.methods.scores.baselines import side_by_side
from shoal.methods.scores.neighbours import nearest_samples, reference_features
from shoal.models.frozen import FrozenEncoder, frozen_encoder, is_pretrained
from shoal.review.results.result import run_result
from shoal.review.served.predict import Predictor, by_client

PROMOTED = "promoted"
KEPT = "champion kept"
WAITS = "waits for approval"
"""Outcomes for a challenger, in the words of tags, events and nights."""
MIN_SAMPLES = 10
"""Held-out samples that a comparison needs: scores of fewer say nothing."""
BATCH = 512


class JudgingError(ShoalError):
    """Two models cannot be compared."""


@dataclass(frozen=True)
class HeldOutScores:
    """A model's scores on the held-out samples.

    Args:
        run: the name of its run's folder.
        samples: number of held-out samples.
        scores: by name.
    """

    run: str
    samples: int
    scores: dict[str, float]


@dataclass(frozen=True)
class Decision:
    """The decision whether the challenger takes the champion's place.

    Args:
        promoted: whether it does.
        why: the reason in one sentence.
        score: the name of the score that decided; empty where there was no champion.
        margin: by which the challenger had to be better.
        challenger: its scores.
        champion: its scores; None where there was no champion.
        low, high: the interval of the difference of the scores that decided; None where there was no champion.
        waits: whether the challenger is better, or the first, and waits for a person's approval; `promoted` is then
            false.
    """

    promoted: bool
    why: str
    score: str
    margin: float
    challenger: HeldOutScores
    champion: HeldOutScores | None
    low: float | None = None
    high: float | None = None
    waits: bool = False

    @property
    def outcome(self) -> str:
        """The outcome for the challenger, in words."""
        if self.waits:
            return WAITS
        if self.promoted:
            return PROMOTED
        return KEPT


@dataclass(frozen=True)
class HeldOut:
    """The held-out samples of a set.

    Args:
        prepared: the set.
        x: samples (n, *shape).
        y: their labels, int64 (n,); None without labels.
        encoder: the pretrained encoder through which the models see images; None where they learn their own features.
        clients: the name of each sample's client (n,); None where nobody knows it.
    """

    prepared: PreparedSet
    x: np.ndarray
    y: np.ndarray | None
    encoder: FrozenEncoder | None = None
    clients: np.ndarray | None = None

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The samples that look most alike to each, int64 (n, k)."""
        features = reference_features(self.x)
        if self.encoder is not None:
            batches = torch.from_numpy(np.array(self.x)).split(BATCH)
            encodings = [encoded(self.encoder, batch.float().div_(255)) for batch in batches]
            features = side_by_side(features, np.concatenate(encodings))
        return nearest_samples(features)


def judge(run: RunFolder, samples: HeldOut) -> tuple[HeldOutScores, HeldOutClusters]:
    """Return the scores of a finished run's model on held-out samples, and its clusters of these.

    Raises:
        JudgingError: the model takes other samples. RunError: the run cannot give new samples a cluster.
    """
    predictor = Predictor(run)
    spec = samples.prepared.spec
    if (predictor.spec.kind, predictor.spec.shape) != (spec.kind, spec.shape):
        raise JudgingError(
            f"run {run.name} was trained on {predictor.spec.kind}s of shape {predictor.spec.shape}, and "
            f"{samples.prepared.manifest.name!r} holds {spec.kind}s of shape {spec.shape}: give the models "
            "names of their own with tracking.register_as"
        )
    clients = np.full(len(samples.x), "") if samples.clients is None else samples.clients
    cluster = by_client(predictor, samples.x, clients, Intake())["cluster"].to_numpy()
    clusters = HeldOutClusters(cluster, predictor.clusters, samples.neighbours, samples.y)
    return HeldOutScores(run.name, len(samples.x), {name: clusters.score(name) for name in clusters.names}), clusters


def check_held_out(prepared: PreparedSet) -> None:
    """Refuse a set that holds out too few samples to compare two models.

    Raises:
        JudgingError: says how many more it needs.
    """
    count = prepared.spec.test
    if prepared.test_x is None or count < MIN_SAMPLES:
        raise JudgingError(
            f"{prepared.manifest.name!r} holds out {count} samples, and a comparison needs at least {MIN_SAMPLES}: add "
            "samples, or hold out a larger part (`night.held_out`, `--test` of `shoal data add`)"
        )


def held_out_samples(prepared: PreparedSet, encoder: FrozenEncoder | None = None) -> HeldOut:
    """Return the held-out samples of a set.

    Args:
        prepared: the set.
        encoder: as in `HeldOut`.

    Raises:
        JudgingError: there are too few.
    """
    check_held_out(prepared)
    assert prepared.test_x is not None
    rows = held_out_rows(prepared.spec.test)
    y = None
    if prepared.test_y is not None:
        y = np.asarray(prepared.test_y[rows])
    clients = None
    if is_by_client(prepared.manifest.files):
        clients = np.asarray(prepared.manifest.extra["clients"])[prepared.owners("test")[rows]]
    return HeldOut(prepared, np.asarray(prepared.test_x[rows]), y, encoder, clients)


def encoder_of(run: RunFolder) -> FrozenEncoder | None:
    """Return the pretrained encoder through which a run's model sees images and which no client trains."""
    settings = run.settings()
    method = METHODS[settings.method.name]
    name = settings.model.encoder
    if method.encoder != "frozen" or not name or not is_pretrained(name):
        return None
    return frozen_encoder(name, run.lineage().encoder_sha256)


def compare(
    challenger: RunFolder,
    champion: RunFolder | None,
    data: Path,
    score: str,
    margin: float,
) -> Decision:
    """Score both models on the present held-out samples of a set, and decide.

    Args:
        challenger: a finished run.
        champion: the run of the model in use; None where the challenger is the first model.
        data: the folder of the set.
        score: the score that decides, `acc` or `neighbours`; auto: `acc` where there are labels, else `neighbours`.
        margin: by which the challenger must be better.

    Raises:
        JudgingError: too few samples are held out, or the score needs labels and they have none.
    """
    prepared = open_prepared(data)
    encoder = None
    if prepared.spec.kind == "image":
        encoder = encoder_of(challenger)
    samples = held_out_samples(prepared, encoder)
    judged, new = judge(challenger, samples)
    if champion is None or champion.name == challenger.name:
        return unopposed(judged, margin, first=champion is None)
    name = deciding_score(score, judged, prepared.manifest.name)
    old_judged, old = judge(champion, samples)
    return decided(name, margin, judged, old_judged, new.interval(name, old, challenger.settings().seed))


def unopposed(judged: HeldOutScores, margin: float, *, first: bool) -> Decision:
    """Return the decision on the first model of a name, or on the champion itself."""
    if first:
        return Decision(True, "there was no champion: this is the first", "", margin, judged, None)
    return Decision(True, "it is the champion already", "", margin, judged, judged)


def decided(
    name: str, margin: float, judged: HeldOutScores, old_judged: HeldOutScores, interval: tuple[float, float]
) -> Decision:
    """Return the decision between two models.

    Args:
        name: of the score that decides.
        margin: by which the challenger must be better.
        judged, old_judged: the scores of the challenger and of the champion.
        interval: of their difference.
    """
    low, high = interval
    gain = judged.scores[name] - old_judged.scores[name]
    promoted = gain >= margin and gain > 0 and low > 0
    scores = f"{name} {judged.scores[name]:.4f} against the champion's {old_judged.scores[name]:.4f}"
    why = f"{scores}: {_reason(gain, margin, low)} ({CONFIDENCE:.0%} interval {low:+.4f} to {high:+.4f})"
    return Decision(promoted, why, name, margin, judged, old_judged, low, high)


def asked_for(decision: Decision, challenger: RunFolder) -> Decision:
    """Return a decision of which a person approves each promotion but that of a first model whose verdict is good.

    Args:
        decision: on the challenger.
        challenger: its run, with its clusters.
    """
    if not decision.promoted:
        return decision
    why = decision.why
    if decision.champion is None:
        verdict = run_result(challenger).verdict
        if verdict is None or verdict.word == "good":
            return decision
        why = f"{why}, and its verdict is {verdict.word}"
    return replace(decision, promoted=False, waits=True, why=why)


def deciding_score(score: str, judged: HeldOutScores, data: str) -> str:
    """Return the name of the score that decides; `score` may be auto, and `data` is the name of the set.

    Raises:
        JudgingError: it needs labels, and the samples have none.
    """
    if score == "auto":
        return "acc" if "acc" in judged.scores else NEIGHBOURS
    if score not in judged.scores:
        raise JudgingError(
            f"the score {score!r} needs labels, and the held-out samples of {data!r} have none: set night.score to "
            f"auto or {NEIGHBOURS}"
        )
    return score


def _reason(gain: float, margin: float, low: float) -> str:
    """Return why a difference of scores is enough, or is not."""
    if gain <= 0:
        return f"not better ({gain:+.4f})"
    if gain < margin:
        return f"better by {gain:.4f}, less than the margin {margin:g}"
    if low <= 0:
        return f"better by {gain:.4f}, which may be chance"
    return f"better by {gain:.4f}, at least the margin {margin:g}"
