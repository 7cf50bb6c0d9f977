"""Whether what came last is like what a model knew: cluster shares, in all and by client, and uniformity by client.

Old samples are those of the set's version before the last; the model is the champion, which has not been trained on the
new ones. Thresholds come from old samples alone, drawn again in the sizes at hand, and keep the probability of a false
alarm of all comparisons together at the level that is asked for (Bonferroni).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.data.own_store import VERSIONS
from shoal.data.prepared import Prepared, open_prepared
from shoal.data.sample_files import sample_files
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.drift import share_drift, uniformity_drift
from shoal.methods.scores.representation import uniformity
from shoal.review.served.judging import BATCH
from shoal.review.served.predict import Predictor

MOST = 2_000
"""Of a client's old samples, and of its new ones, at most so many are looked at, a seeded draw."""
LEAST = 5
"""Old and new samples that a client has at least, to be compared."""
CLUSTERS, UNIFORMITY = "cluster shares", "uniformity"


@dataclass(frozen=True)
class Drift:
    """One comparison of new samples with old ones.

    Args:
        what: cluster shares or uniformity.
        client: whose samples; empty: all together.
        old, new: how many samples were compared.
        distance: Jensen-Shannon distance of the shares; or by how much uniformity changed.
        low, high: between which bounds it lies by chance.
        found: it does not.
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
        """As JSON."""
        return asdict(self)

    def told(self) -> str:
        """In one sentence."""
        whose = f"client {self.client}" if self.client else "all clients"
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
    """Every comparison of the samples that came last with those before; empty where the set has one version only.

    Args:
        champion: the run of the model in use.
        data: the folder of a set of the user's own.
        level: probability of a false alarm, of all comparisons together.
        seed: of draws.

    Raises:
        RunError: the run gives new samples no clusters.
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
        kept = [np.sort(rng.choice(rows, MOST, replace=False)) if len(rows) > MOST else rows for rows in sides]
        parts[client] = (_look(predictor, prepared, table, kept[0]), _look(predictor, prepared, table, kept[1]))
    both = [client for client, (old, fresh) in parts.items() if min(len(old.cluster), len(fresh.cluster)) >= LEAST]
    rng = Streams(seed).numpy("drift thresholds")
    level /= 1 + 2 * len(both)
    old, fresh = (np.concatenate([pair[side].cluster for pair in parts.values()]) for side in (0, 1))
    found = []
    if min(len(old), len(fresh)) >= LEAST:
        found.append(_shares("", old, fresh, predictor.clusters, level, rng))
    allowance = _gap([parts[client][0] for client in both])
    for client in both:
        before_, after = parts[client]
        found.append(_shares(client, before_.cluster, after.cluster, predictor.clusters, level, rng))
        found.append(_uniformity(client, before_, after, allowance, level, rng))
    return found


def _look(predictor: Predictor, prepared: Prepared, table: Any, rows: np.ndarray) -> _Part:
    """What the champion says of the samples in some rows of the set's table of files."""
    held = (table["part"].to_numpy() == "test")[rows]
    index = table["index"].to_numpy()[rows]
    clusters, features = [np.zeros(0, dtype=np.int64)], []
    test_x = prepared.train_x[:0] if prepared.test_x is None else prepared.test_x
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        pairs = zip(held[part], index[part], strict=True)
        x = np.stack([test_x[i] if out else prepared.train_x[i] for out, i in pairs])
        assigned, seen = predictor.judge(x)
        clusters.append(np.asarray(assigned["cluster"]))
        features.append(seen)
    return _Part(np.concatenate(clusters), np.concatenate(features) if features else np.zeros((0, 1)), held)


def _shares(
    client: str, old: np.ndarray, new: np.ndarray, clusters: int, level: float, rng: np.random.Generator
) -> Drift:
    distance, high = share_drift(old, new, clusters, level, rng)
    return Drift(CLUSTERS, client, len(old), len(new), distance, 0.0, high, distance > high)


def _gap(parts: list[_Part]) -> float:
    """By how much uniformity differs between samples that were trained on and samples held out, of the old ones.

    A network spreads what it was trained on more evenly than anything else, and nothing new was trained on.
    """
    if not parts:
        return 0.0
    features = np.concatenate([part.features for part in parts])
    held = np.concatenate([part.held_out for part in parts])
    if min(held.sum(), (~held).sum()) < LEAST:
        return 0.0
    seen, unseen = (uniformity(torch.from_numpy(features[side][:MOST])) for side in (~held, held))
    return abs(seen - unseen)


def _uniformity(client: str, old: _Part, new: _Part, allowance: float, level: float, rng: np.random.Generator) -> Drift:
    before, after, (low, high) = uniformity_drift(old.features, new.features, level, rng)
    low, high = low - before - allowance, high - before + allowance
    change = after - before
    return Drift(UNIFORMITY, client, len(old.cluster), len(new.cluster), change, low, high, not low <= change <= high)
