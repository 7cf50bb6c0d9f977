"""Drift between new samples and old ones: how both spread over clusters, of all samples and of each client.

Old samples are those of the set's version before the last. The model is the champion, which was not trained on the new
samples. Thresholds come from old samples alone, drawn again in the given sizes, and keep the probability of a false
alarm in all comparisons together at the given level (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.core.streams import Streams
from shoal.data.intake.own_store import VERSIONS
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import open_prepared
from shoal.data.sets.sample_files import sample_files
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.drift import share_drift
from shoal.review.served.predict import Predictor, site_model

MAX_SAMPLES = 2_000
"""Old samples, and new samples, of a client that are compared, a seeded draw."""
MIN_SAMPLES = 5
"""Old samples, and new samples, that a client needs to be compared."""


@dataclass(frozen=True)
class Drift:
    """A comparison of the cluster shares of new samples with those of old ones.

    Args:
        client: the owner of the samples; empty: all clients together.
        old, new: numbers of samples that were compared.
        distance: Jensen-Shannon distance of the shares.
        by_chance: its bound by chance.
    """

    client: str
    old: int
    new: int
    distance: float
    by_chance: float

    @property
    def found(self) -> bool:
        """Whether the shares differ by more than chance."""
        return self.distance > self.by_chance

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        whose = "all clients"
        if self.client:
            whose = f"client {self.client}"
        return (
            f"cluster shares of {whose} differ from {self.old} old to {self.new} new samples: a Jensen-Shannon "
            f"distance of {self.distance:.3f}, by chance at most {self.by_chance:.3f}"
        )


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
    versions = prepared.manifest.extra.get(VERSIONS)
    if not versions or table is None:
        return []
    predictor = Predictor(champion)
    parts: dict[str, Any] = {"train": prepared.train_x, "test": prepared.test_x}
    table["new"] = table["index"] >= table["part"].map(versions[-1])
    drawn = []
    for number, client in enumerate(prepared.manifest.extra["clients"]):
        rng = Streams(seed, client=number).numpy("samples to look for drift in")
        own = table[table["client"] == client]
        known = own.query("part == 'train'")["index"].to_numpy()[:MAX_SAMPLES]
        model = site_model(predictor, parts["train"][known], client, Intake())  # one offset for old and new samples
        for new, rows in own.groupby("new"):
            some = rows.sample(min(len(rows), MAX_SAMPLES), random_state=rng)
            for part, files in some.sort_index().groupby("part"):
                clusters = model.assign_array(parts[part][files["index"].to_numpy()])["cluster"]
                drawn.append(pd.DataFrame({"client": client, "new": new, "cluster": clusters}))
    samples = pd.concat(drawn)
    sides = {}
    for client, rows in [("", samples), *samples.groupby("client", sort=False)]:
        pair = [rows.loc[rows["new"] == new, "cluster"].to_numpy() for new in (False, True)]
        if min(map(len, pair)) >= MIN_SAMPLES:
            sides[client] = pair
    rng = Streams(seed).numpy("drift thresholds")
    return [
        Drift(client, len(old), len(new), *share_drift(old, new, predictor.clusters, level / len(sides), rng))
        for client, (old, new) in sides.items()
    ]
