"""The cluster of every sample of a run, as a table, and the clusters' quality without labels.

    clusters.parquet     a row a sample: client, client_name, part, sample, file, label, cluster, confidence, distance
    clusters.json        quality, sizes, and what is needed to give new samples their clusters
    centres.safetensors  the centres (c, d), where clusters are defined by centres
    features.safetensors some rows of the table, and the model's features of them (`shoal.methods.scores.shown`)

Worker slots compute the clusters after the last round, so that no bit of a run depends on them. clusters.json is
written last: without it, or with another state's digest in it, the table is written again when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from shoal.core.errors import DataError, ShoalError
from shoal.data.partition.table import Partition, load_partition
from shoal.data.prepared import Prepared, open_prepared
from shoal.data.sample_files import sample_files
from shoal.engine.messages.wire import Assign, Assigned, Failed
from shoal.engine.rounds.active_run import Call, active_run_at
from shoal.engine.rounds.deadlines import Deadline, Limits
from shoal.engine.store.checkpoint import has_server, load_index, rounds_done
from shoal.engine.store.codec import (
    StoreError,
    check_digest,
    file_digest,
    load_tensors,
    read_sealed,
    save_tensors,
    write_atomic,
    write_sealed,
)
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import LEVEL, WARNING
from shoal.engine.store.run_folder import FINISHED, RunFolder
from shoal.engine.store.table_file import read_table
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import MethodError
from shoal.methods.registry import METHODS
from shoal.methods.scores.quality import size_shares, stability

TABLE = "clusters.parquet"
FACTS = "clusters.json"
CENTRES = "centres.safetensors"
FEATURES = "features.safetensors"
FACTS_SHA256 = "clusters_sha256"
"""Entry of the status of a finished run: the digest of clusters.json."""
TEST = "test"
"""The part of a set that no client holds."""
QUALITY = ("silhouette", "stability", "smallest_cluster", "largest_cluster", "empty_clusters")
TEXT_COLUMNS = ("client_name", "file", "label")


@dataclass(frozen=True)
class FindClusters:
    """A unit of work after the last round (see `shoal.engine.rounds.units`): the table of clusters.

    Args:
        run: the run's folder.
    """

    run: Path
    name: ClassVar[str] = "clusters of all samples"

    def execute(self) -> bool:
        """Write the table unless the run has it; return whether the run has it now."""
        return keep_clusters(RunFolder(self.run), active_run_at(self.run).call)


def keep_clusters(run: RunFolder, call: Call) -> bool:
    """Write the cluster table of a finished run, unless it is there; where there can be none, record why in an event.

    Args:
        run: the run's folder.
        call: sends a request to a worker (`shoal.engine.cluster.pools.Pool.call`).

    Returns:
        Whether the run has a table now.
    """
    status = run.status()
    if status["state"] != FINISHED or not status["round"]:
        return False
    if whole_clusters(run, status["weights_sha256"]):
        remember(run)
        return True
    round = int(status["round"])
    states = [r for r in rounds_done(run) if 0 < r <= round and has_server(run, r)][-2:]
    try:
        # One after another: workers that share no file system with this machine keep one state at a time.
        answers = {r: assigned(run, r, call, judge=r == round) for r in reversed(states)}
        write_clusters(run, answers[round], {r: answer.cluster for r, answer in answers.items()})
        remember(run)
    except ShoalError as error:  # the run itself is done, even without a table
        message = f"no cluster table: {error}"
        if all(event.get("message") != message for event in run.events()):
            level = {}
            if can_have_clusters(METHODS[run.settings().method.name]):
                level = {LEVEL: WARNING}
            run.event("clusters_skipped", message=message, **level)
        return False
    return True


def has_clusters(run: RunFolder) -> bool:
    """Return whether a finished run has the clusters of its final state, undamaged."""
    status = run.status()
    return status["state"] == FINISHED and whole_clusters(run, status["weights_sha256"])


def can_have_clusters(kind: type[Method]) -> bool:
    """Return whether a run of a method can have a cluster table.

    It cannot where each client keeps its own model, or where the method learns labels.
    """
    says_clusters = kind.predictor is not Method.predictor or kind.assignment is not Method.assignment
    return expects_clusters(kind) and says_clusters and not kind.learns_from_labels


def expects_clusters(kind: type[Method]) -> bool:
    """Return whether a method gives samples clusters, in every evaluation or at the end."""
    return bool(kind.finds_clusters) or kind.assignment is not Method.assignment


def whole_clusters(run: RunFolder, weights_sha256: str) -> bool:
    """Return whether all files of a run's clusters are there, undamaged, and of this state."""
    path = run.path / FACTS
    if not path.exists():
        return False
    try:
        facts = read_sealed(path)
        for name, sha256 in facts.get("files", {}).items():
            check_digest(run.path / name, sha256)
    except StoreError:
        return False
    return bool(facts["weights_sha256"] == weights_sha256) and (run.path / TABLE).exists()


def remember(run: RunFolder) -> None:
    """Keep the digest of clusters.json in the status, so that a lost file is noticed."""
    if run.status().get(FACTS_SHA256) != (digest := file_digest(run.path / FACTS)):
        run.add_to_status(**{FACTS_SHA256: digest})


def assigned(run: RunFolder, round: int, call: Call, *, judge: bool) -> Assigned:
    """Have a worker slot compute the clusters of all samples under the state of a round.

    Raises:
        MethodError: the computation failed. WorkerLost: the worker was lost twice.
    """
    paths = RoundPaths(run.path, round)
    settings = run.settings()
    deadline = Deadline(Limits.from_settings(settings.workers), f"the clusters of round {round}")
    index = MemoryIndex()
    if METHODS[settings.method.name].evaluation_reads_memory:
        index = load_index(run, round)
    request = Assign(run.path, round, paths.server, index, judge, deadline)
    try:
        answer = call(request)
    except WorkerLost:
        answer = call(request)
    if isinstance(answer, Failed):
        raise MethodError(answer.error)
    assert isinstance(answer, Assigned)
    return answer


def write_clusters(run: RunFolder, found: Assigned, assignments: dict[int, np.ndarray]) -> None:
    """Write table, centres, features to draw and facts from a worker slot's answer.

    Args:
        run: the run's folder.
        found: the answer for the last round, with `silhouette`.
        assignments: clusters int (n,) under each tensor_files state, by round.
    """
    status = run.status()
    prepared = open_prepared(run.folder_of("data"))
    partition = load_partition(run.folder_of("partition"))
    table = cluster_table(run, prepared, partition, found)
    tensor_files = {
        CENTRES: {"centres": found.centres},
        FEATURES: {"rows": found.shown, "features": found.features},
    }
    for file, arrays in tensor_files.items():
        (run.path / file).unlink(missing_ok=True)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
        if tensors:
            save_tensors(run.path / file, tensors, sync=False)
    write_atomic(run.path / TABLE, table.to_parquet(index=False), sync=False)
    quality: dict[str, float | None] = {"silhouette": found.silhouette}
    *earlier, last = sorted(assignments)
    if earlier:
        quality["stability"] = stability(assignments[earlier[-1]], assignments[last])
    quality |= size_shares(found.cluster, found.clusters)
    spec = prepared.spec
    facts = {
        "round": last,
        "compared_with_round": max(earlier, default=None),
        "weights_sha256": status["weights_sha256"],
        "clusters": found.clusters,
        "confidence": "margin" if found.centres is not None else "probability",
        "quality": {name: value for name, value in quality.items() if value is not None},
        "data": {
            **{name: getattr(spec, name) for name in ("name", "kind", "classes", "train", "test")},
            "shape": list(spec.shape),
            "features": prepared.manifest.extra.get("features", []),
            "on_odd": odd_choice(prepared),
        },
    }
    facts["files"] = {
        name: file_digest(run.path / name) for name in (TABLE, *tensor_files) if (run.path / name).exists()
    }
    write_sealed(run.path / FACTS, facts, sync=False)


def cluster_table(run: RunFolder, prepared: Prepared, partition: Partition, found: Assigned) -> pd.DataFrame:
    """Return a row a sample: training samples that a client holds, in the order of the set, then all test samples.

    Columns: client (its number; missing where no client holds the sample), client_name, part (train or test), sample
    (number in that part of the set), file (where the set keeps file names), label (where the set has labels; the
    class's name where classes have names; planted label maps are applied), cluster, confidence and, with centres,
    distance.
    """
    order = np.argsort(partition.sample, kind="stable")  # the order of `shoal.data.view.all_samples`
    train = len(order)
    test = prepared.spec.test
    if len(found.cluster) != train + test:
        raise MethodError(f"{len(found.cluster)} samples have a cluster, expected {train} + {test}: resume the run")
    names = client_names(partition)
    numbers = pd.array([*partition.client[order].tolist(), *[None] * test], dtype="Int64")
    sample = np.concatenate([partition.sample[order], np.arange(test)])
    part = np.repeat(["train", TEST], [train, test])
    files = origins(run, prepared)
    columns: dict[str, Any] = {
        "client": numbers,
        "client_name": [*(names[k] for k in partition.client[order]), *[None] * test],
        "part": part,
        "sample": sample,
        "file": [None] * len(part),
    }
    if files is not None:
        rows = files.loc[list(zip(part, sample, strict=True))]
        columns["file"] = rows["file"].to_list()
        # Test samples of a user's own data come from a client too.
        number = {name: k for k, name in enumerate(names)}
        owners = rows["client"].to_list()
        columns["client_name"] = [name or owner for name, owner in zip(columns["client_name"], owners, strict=True)]
        if partition.client_names:
            columns["client"] = pd.array([number.get(name) for name in columns["client_name"]], dtype="Int64")
    if (labels := label_names(prepared, partition, order)) is not None:
        columns["label"] = labels
    columns["cluster"] = found.cluster.astype(np.int32)
    columns["confidence"] = found.confidence.astype(np.float32)
    if found.distance is not None:
        columns["distance"] = found.distance.astype(np.float32)
    words = {
        name: pd.array(columns[name], dtype="string") for name in columns if name in TEXT_COLUMNS
    }  # even if all are missing
    return pd.DataFrame({**columns, **words})


def client_names(partition: Partition) -> list[str]:
    """Return the name of each client, or its number as text."""
    return list(partition.client_names) or [str(k) for k in range(partition.clients)]


def origins(run: RunFolder, prepared: Prepared) -> pd.DataFrame | None:
    """Return the files of a set by (part, number); None where it has none, or where they are lost, with an event."""
    try:
        files = sample_files(prepared)
    except DataError as error:
        run.event("files_unknown", message=f"the cluster table has no file names: {error}")
        return None
    if files is None:
        return None
    return files.set_index(["part", "index"])


def label_names(prepared: Prepared, partition: Partition, order: np.ndarray) -> list[str | None] | None:
    """Return the label of each row of the table in words; None where the set has no labels."""
    if prepared.train_y is None:
        return None
    y = np.asarray(prepared.train_y)[partition.sample[order]]
    planted = partition.transformation[order]
    for number, change in enumerate(partition.transformations):
        if change.labels:
            rows = planted == number
            y[rows] = np.asarray(change.labels)[y[rows]]
    names = prepared.manifest.class_names
    test: list[int | None] = [None] * prepared.spec.test
    if prepared.test_y is not None:
        test = prepared.test_y.tolist()
    labels = [*y.tolist(), *test]
    if names:
        return [k if k is None else names[k] for k in labels]
    return [k if k is None else str(k) for k in labels]


def odd_choice(prepared: Prepared) -> str:
    """Return how to treat new images of another size: resize them where the set was made that way, else skip them."""
    extra = prepared.manifest.extra
    if extra.get("on_odd") == "resize" or extra.get("resized"):
        return "resize"
    return "skip"


def cluster_facts(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of clusters.json; None where the run has no cluster table.

    Raises:
        StoreError: the file is damaged, lost, or of another state than the run's last one.
    """
    path = run.path / FACTS
    status = run.status()
    if not path.exists() and FACTS_SHA256 not in status:
        return None
    try:
        facts = read_sealed(path)
        check_digest(path, status.get(FACTS_SHA256))
    except StoreError as error:
        raise damaged_clusters(run, error) from error
    return facts


def damaged_clusters(run: RunFolder, error: StoreError) -> StoreError:
    """Return the error to raise for a damaged file of a run's clusters."""
    return StoreError(f"run {run.name}: {error}; `shoal run --resume {run.name}` writes it again")


def read_clusters(run: RunFolder, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """Return the cluster table of a run, a row a sample (`cluster_table`); None where it has none.

    Args:
        run: the run's folder.
        columns: the columns to read; None: all.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    facts = cluster_facts(run)
    if facts is None:
        return None
    try:
        return read_table(run.path / TABLE, facts.get("files", {}).get(TABLE), columns)
    except StoreError as error:
        raise damaged_clusters(run, error) from error


def read_cluster_tensors(run: RunFolder, name: str) -> dict[str, torch.Tensor] | None:
    """Return the tensors of `CENTRES` or `FEATURES`; None where the run has no such file.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    facts = cluster_facts(run)
    sha256 = (facts or {}).get("files", {}).get(name)
    path = run.path / name
    if facts is None or (sha256 is None and not path.exists()):
        return None
    try:
        return load_tensors(path, sha256=sha256)[0]
    except StoreError as error:
        raise damaged_clusters(run, error) from error


def quality(run: RunFolder) -> dict[str, float]:
    """Return the numbers that need no labels: silhouette, stability, size shares and empty clusters."""
    facts = cluster_facts(run)
    if not facts:
        return {}
    return {name: facts["quality"][name] for name in QUALITY if name in facts["quality"]}
