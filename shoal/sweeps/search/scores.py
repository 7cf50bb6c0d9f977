"""The score of a run after a round: one number, which stops a trial early and compares it with the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.core.errors import ShoalError
from shoal.core.streams import Streams
from shoal.data.partition.table import load_partition
from shoal.data.sets.prepared import open_prepared
from shoal.engine.messages.wire import Call
from shoal.engine.store.checkpoint import manifests, newest_valid
from shoal.engine.store.codec import StoreError
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.methods.scores.neighbours import nearest_samples, neighbour_information, reference_features
from shoal.review.results.clusters import assign_samples
from shoal.sweeps.search.definition import CLUSTER_SCORES, NEIGHBOURS, SearchError

MAX_SAMPLES = 5_000
"""Samples, a seeded draw, that `neighbours` compares: its cost grows with their square."""
SCORED = "scored"
"""Event of a run: a score that was computed from the state after a round."""


class Scorer:
    """Gives runs their scores.

    Args:
        name: of the score (`shoal.sweeps.search.definition.SCORES`).
        call: sends a request to a worker, for scores that are computed from the clusters of all samples.
    """

    def __init__(self, name: str, call: Call) -> None:
        self.name = name
        self._call = call
        self._neighbours: dict[tuple[Path, bytes], tuple[np.ndarray, np.ndarray]] = {}

    def after_round(self, run: RunFolder, round: int, metrics: Mapping[str, float]) -> float | None:
        """Return the score of an evaluated round whose state is stored; None where the round has none.

        A score that is computed is stored as an event of the run.

        Raises:
            SearchError: the run's method finds no clusters of samples, or its samples have no neighbours.
        """
        if self.name not in CLUSTER_SCORES:
            value = metrics.get(self.name)
            if value is not None and math.isfinite(value):
                return value
            return None
        stored = stored_scores(run, self.name)
        if round in stored:
            return stored[round]
        value = self._cluster_score(run, round)
        run.event(SCORED, round=round, score=self.name, value=value)
        return value

    def so_far(self, run: RunFolder) -> dict[int, float] | None:
        """Return the scores of all evaluated rounds of a run, by round.

        Returns:
            None where a score is not stored and can no longer be computed, since the state of its round was removed.

        Raises:
            StoreError: a state, number or event of a finished run is damaged.
        """
        finished = run.status().state == FINISHED
        # An unfinished run is resumed after its newest whole round, and has scores up to there.
        checkpoint = read_state(run) if finished else newest_valid(run)
        if checkpoint is None:
            return {}
        last = checkpoint.server.round
        stored = stored_scores(run, self.name)
        scores = {}

        def refuse(round: int, why: str) -> None:
            if finished:
                raise StoreError(f"run {run.name}: {why}; remove the run with `shoal runs --remove {run.name}`")

        for manifest in manifests(run, last, refuse):
            if manifest.record is None or not manifest.record.metrics:
                continue
            if self.name in CLUSTER_SCORES and manifest.round not in stored and manifest.round != last:
                return None
            value = self.after_round(run, manifest.round, dict(manifest.record.metrics))
            if value is not None:
                scores[manifest.round] = value
        return scores

    def _cluster_score(self, run: RunFolder, round: int) -> float | None:
        try:
            clusters = assign_samples(run, round, self._call, judge=self.name != NEIGHBOURS)
        except ShoalError as error:
            raise SearchError(f"the score {self.name!r} of run {run.name} cannot be computed: {error}") from error
        if self.name != NEIGHBOURS:
            value = clusters.silhouette
        else:
            rows, neighbours = self._neighbours_of(run)
            value = neighbour_information(clusters.cluster[rows], neighbours, clusters.clusters)
        if value is not None and math.isfinite(value):
            return value
        return None

    def _neighbours_of(self, run: RunFolder) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers int64 (n,) of the compared samples, and the neighbours int64 (n, k) of each among them.

        Samples are numbered as in the table of clusters: training samples that some client holds, in the order of the
        set, then all test samples. They are compared as the set has them, without a planted transformation.
        """
        folder = run.folder_of("data")
        partition = load_partition(run.folder_of("partition"))
        samples = np.sort(partition.sample)
        key = (folder, samples.tobytes())
        if key not in self._neighbours:
            prepared = open_prepared(folder)
            count = len(samples) + prepared.spec.test
            rows = np.arange(count)
            if count > MAX_SAMPLES:
                drawn = Streams(0).numpy("samples that a search judges clusterings on")
                rows = np.sort(drawn.choice(count, MAX_SAMPLES, replace=False))
            parts = [np.asarray(prepared.train_x[samples[rows[rows < len(samples)]]])]
            if prepared.test_x is not None:
                parts.append(np.asarray(prepared.test_x[rows[rows >= len(samples)] - len(samples)]))
            try:
                features = reference_features(np.concatenate(parts))
            except ValueError as error:
                raise SearchError(f"the score {self.name!r} cannot be computed: {error}; set another score") from None
            self._neighbours[key] = (rows, nearest_samples(features))
        return self._neighbours[key]


def stored_scores(run: RunFolder, name: str) -> dict[int, float | None]:
    """Return the scores of this name among a run's events, by round; None where a score is not defined."""
    events = (event for event in run.whole_events() if event.kind == SCORED and event.facts.get("score") == name)
    return {event.round: event.facts["value"] for event in events}
