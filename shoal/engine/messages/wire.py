"""The requests of the engine to workers, and their answers.

Requests and answers are small, and travel as they are; tensors stay in files of the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.core.errors import FailureCause
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import ClientFiles
from shoal.methods.scores.baselines import Comparison

# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumPlan:
    """How the messages of a round are added up, of which the server sees the sum (`privacy.sums`).

    Args:
        attempt: number of the attempt in the round, from 1.
        clients: all whose messages are added up.
        samples: number of training samples of these together.
        keys: the public key of each, in hex digits; None: messages have no masks.
    """

    attempt: int
    clients: tuple[int, ...]
    samples: int
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Train:
    """Train some clients of a round.

    Args:
        run: the run's folder.
        round: the round.
        clients: the files of each client.
        groups: the ids in groups, each trained in one computation.
        plan: of the sum of messages; None: the server gets each as it is.
    """

    run: Path
    round: int
    clients: tuple[ClientFiles, ...]
    groups: tuple[tuple[int, ...], ...]
    plan: SumPlan | None = None


@dataclass(frozen=True)
class ShareKeys:
    """Make the keys of clients' masks, those that are not there, and return the public ones.

    Args:
        run: the run's folder.
        clients: ids of the clients.
    """

    run: Path
    clients: tuple[int, ...]


@dataclass(frozen=True)
class StateRequest:
    """A request about a server state.

    Args:
        run: the run's folder.
        round: the round of the state.
        server: the file of the state.
        clients: the files of each client after the round.
        site: the site whose samples are asked about; empty: all samples are here.
    """

    run: Path
    round: int
    server: Path
    clients: tuple[ClientFiles, ...]
    site: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Evaluate(StateRequest):
    """Compute the metrics of a server state.

    Args:
        final: also compute the metrics of the end of a run.
        threads: number of threads that predict batches.
    """

    final: bool
    threads: int = 1


@dataclass(frozen=True)
class Recalibrate(StateRequest):
    """Compute the tensors that replace those of a server state in its evaluation.

    Args:
        final: see `Evaluate`.
        layers: at a site, the sums over all sites of the layers with BatchNorm that are known (`layer_arrays`).
    """

    final: bool
    layers: tuple[Mapping[str, np.ndarray], ...] = ()


@dataclass(frozen=True)
class Assign(StateRequest):
    """Find the cluster of every sample under a server state, and judge the clusters."""


Request = Train | Evaluate | Recalibrate | Assign | ShareKeys


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """The failure of a request, or of one client's work.

    Args:
        error: message for people.
        cause: kind of the failure, which decides what is done next.
    """

    error: str
    cause: FailureCause = FailureCause.OTHER


@dataclass(frozen=True)
class TrainAnswer:
    """The result of each client of a `Train`, by its id."""

    clients: dict[int, FinishedWork | Failure]

    @property
    def finished(self) -> dict[int, FinishedWork]:
        """The work of the clients that did not fail."""
        return {client: result for client, result in self.clients.items() if isinstance(result, FinishedWork)}


@dataclass(frozen=True)
class EvaluateAnswer:
    """The answer to `Evaluate` and `Recalibrate`.

    Args:
        metrics: of a server state, by name; empty but for `Evaluate`.
        judged: tensors that replaced those of the state in its evaluation (`Method.recalibrate`).
        sums: of a site: `samples`, how many were judged, and `table`, their counts by cluster and label, int64
            (c, k + 1), where clusters are those of all sites; or the sums of the next layer with BatchNorm.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    judged: dict[str, np.ndarray] = field(default_factory=dict)
    sums: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class AssignAnswer:
    """The cluster of every sample of a set, first the n training samples, then the test samples.

    Args:
        clusters: number of clusters.
        cluster: of each sample, int64 (n,).
        confidence: of the model in each cluster, float32 (n,).
        centres: of the clusters (c, d); None if clusters have no centres.
        distance: of each sample to its centre (n,); None if clusters have no centres.
        silhouette: mean silhouette of the samples' features, if asked for and defined.
        shown: indices of samples to draw, int64 (m,), if asked for (`shoal.methods.scores.shown`).
        features: their features, or principal components of them, float32 (m, p).
        comparison: the clusters beside null baselines, if asked for and if there are such baselines.
    """

    clusters: int
    cluster: np.ndarray
    confidence: np.ndarray
    centres: np.ndarray | None = None
    distance: np.ndarray | None = None
    silhouette: float | None = None
    shown: np.ndarray | None = None
    features: np.ndarray | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True)
class SiteAssignAnswer:
    """The clusters of a site's samples in numbers; the site keeps their table.

    Args:
        clusters: number of clusters.
        counts: number of samples in each cluster of each of the site's clients, and of none, int64 (clients + 1, c).
        silhouette: as of `AssignAnswer`.
        comparison: as of `AssignAnswer`, on the site's samples alone.
    """

    clusters: int
    counts: np.ndarray
    silhouette: float | None = None
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Keys:
    """The public keys of clients, in hex digits."""

    public: Mapping[int, str]


Answer = Keys | TrainAnswer | EvaluateAnswer | AssignAnswer | SiteAssignAnswer | Failure
Call = Callable[[Request], Answer]
"""Has a worker do a request, and waits for the answer."""
