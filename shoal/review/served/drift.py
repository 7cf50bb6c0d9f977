"""Drift between new samples and old ones: cluster shares, of all samples and by client, and uniformity by client.

Old samples are those of the set's version before the last. The model is the champion, which was not trained on the new
samples. Thresholds come from old samples alone, drawn again in the given sizes, and keep the probability of a false
alarm in all comparisons together at the given level (Bonferroni).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.data.intake.own_store import VERSIONS
from shoal.data.sets.prepared import Prepared, open_prepared
from shoal.data.sets.sample_files import sample_files
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.drift import share_drift, uniformity_drift
from shoal.methods.scores.representation import uniformity
from shoal.review.served.judging import BATCH
from shoal.review.served.predict import Predictor

MAX_SAMPLES = 2_000
"""Old samples, and new samples, of a client that are compared, a seeded draw."""
MIN_SAMPLES = 5
"""Old samples, and new samples, that a client needs to be compared."""
CLUSTERS = "cluster shares"
UNIFORMITY = "uniformity"


@dataclass(frozen=True)
class Drift:
    """One comparison of new samples with old ones.

    Args:
        what: cluster shares or uniformity.
        client: the owner of the samples; empty: all clients together.
        old, new: numbers of samples that were compared.
        distance: Jensen-Shannon distance of the shares; or the change of uniformity.
        low, high: the bounds of the distance by chance.
        found: whether the distance lies outside of these bounds.
    """

    what: str
    client: str
    old: int
    new: int
    distance: float
    low: float
    high: float
    found: bool

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        whose = "all clients"
        if self.client:
            whose = f"client {self.client}"
        counts = f"from {self.old} old to {self.new} new samples"
        if self.what == CLUSTERS:
            by = f"a Jensen-Shannon distance of {self.distance:.3f}, by chance at most {self.high:.3f}"
            return f"cluster shares of {whose} differ {counts}: {by}"
        by = f"{self.distance:+.3f}, by chance between {self.low:+.3f} and {self.high:+.3f}"
        return f"uniformity of {whose} changed {counts}: {by}"


@dataclass(frozen=True)
class _Part:
    """Old or new samples of a client: clusters (n,), features (n, d), and which of them are held out, bool (n,)."""

    cluster: np.ndarray
    features: np.ndarray
    held_out: np.ndarray


def find_drift(champion: RunFolder, data: Path, level: float, seed: int) -> list[Drift]:
    """Compare the newest samples with those before; return nothing where the set has only one version.

    Args:
        champion: the run of the model in use.
        data: the folder of a user's own set.
        level: probability of a false alarm in all comparisons together.
        seed: of the random draws.

    Raises:
        RunError: the run cannot give new samples a cluster.
    """
    prepared = open_prepared(data)
    table = sample_files(prepared)
    if not prepared.manifest.extra.get(VERSIONS) or table is None:
        return []
    before = prepared.manifest.extra[VERSIONS][-1]
    predictor = Predictor(champion)
    new = np.where(table["part"] == "train", table["index"] >= before["train"], table["index"] >= before["test"])
    parts: dict[str, tuple[_Part, _Part]] = {}
    clients = list(prepared.manifest.extra["clients"])
    for number, client in enumerate(clients):
        rng = Streams(seed, client=number).numpy("samples to look for drift in")
        sides = [np.flatnonzero((table["client"] == client) & (new == side)) for side in (False, True)]
        old_rows, new_rows = (_draw(rows, rng) for rows in sides)
        parts[client] = (_part_of(predictor, prepared, table, old_rows), _part_of(predictor, prepared, table, new_rows))
    both = [name for name, pair in parts.items() if min(len(part.cluster) for part in pair) >= MIN_SAMPLES]
    rng = Streams(seed).numpy("drift thresholds")
    level /= 1 + 2 * len(both)
    old, fresh = (np.concatenate([pair[side].cluster for pair in parts.values()]) for side in (0, 1))
    found = []
    if min(len(old), len(fresh)) >= MIN_SAMPLES:
        found.append(_shares("", old, fresh, predictor.clusters, level, rng))
    allowance = _gap([parts[client][0] for client in both])
    for client in both:
        old_part, new_part = parts[client]
        found.append(_shares(client, old_part.cluster, new_part.cluster, predictor.clusters, level, rng))
        found.append(_uniformity(client, old_part, new_part, allowance, level, rng))
    return found


def _draw(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return at most `MAX_SAMPLES` of some rows, in their order."""
    if len(rows) <= MAX_SAMPLES:
        return rows
    return np.sort(rng.choice(rows, MAX_SAMPLES, replace=False))


def _part_of(predictor: Predictor, prepared: Prepared, table: Any, rows: np.ndarray) -> _Part:
    """Return clusters and features, by the champion's model, of some rows of the set's table of files."""
    held_out = (table["part"].to_numpy() == "test")[rows]
    index = table["index"].to_numpy()[rows]
    clusters = [np.zeros(0, dtype=np.int64)]
    features = []
    sources = [prepared.train_x]
    if prepared.test_x is not None:
        sources.append(prepared.test_x)
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        x = np.stack([sources[int(test)][i] for test, i in zip(held_out[part], index[part], strict=True)])
        assigned, embedding = predictor.judge(x)
        clusters.append(np.asarray(assigned["cluster"]))
        features.append(embedding)
    return _Part(np.concatenate(clusters), np.concatenate(features or [np.zeros((0, 1))]), held_out)


def _shares(
    client: str, old: np.ndarray, new: np.ndarray, clusters: int, level: float, rng: np.random.Generator
) -> Drift:
    distance, high = share_drift(old, new, clusters, level, rng)
    return Drift(CLUSTERS, client, len(old), len(new), distance, 0.0, high, distance > high)


def _gap(parts: list[_Part]) -> float:
    """Return by how much uniformity differs between old samples that were trained on and old samples held out.

    A network spreads the samples of its training more evenly than any others, and it was not trained on new ones.
    """
    if not parts:
        return 0.0
    features = np.concatenate([part.features for part in parts])
    held_out = np.concatenate([part.held_out for part in parts])
    if min(held_out.sum(), (~held_out).sum()) < MIN_SAMPLES:
        return 0.0
    sides = (features[~held_out][:MAX_SAMPLES], features[held_out][:MAX_SAMPLES])
    uniformity_trained, uniformity_held_out = (uniformity(torch.from_numpy(side)) for side in sides)
    return abs(uniformity_trained - uniformity_held_out)


def _uniformity(client: str, old: _Part, new: _Part, allowance: float, level: float, rng: np.random.Generator) -> Drift:
    before, after, (low, high) = uniformity_drift(old.features, new.features, level, rng)
    low = low - before - allowance
    high = high - before + allowance
    change = after - before
    return Drift(UNIFORMITY, client, len(old.cluster), len(new.cluster), change, low, high, not low <= change <= high)
