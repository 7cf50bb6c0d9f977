"""The way back from clusters to samples: a table with the cluster of every sample, and its quality without labels.

    clusters.parquet     a row a sample: client, client_name, part, sample, file, label, cluster, confidence, distance;
                         in runs of nights also cluster_id, the cluster's name (`shoal.review.results.stable_names`)
    clusters.json        quality, sizes, and what is needed to give new samples their clusters
    centres.safetensors  the centres (c, d), where clusters are defined by centres
    features.safetensors some rows of the table, and the model's features of them (`shoal.methods.scores.shown`)

The final state is judged by worker slots after the last round, so that no bit of a run depends on it. clusters.json is
written last: without it, or with another state's digest in it, the table is made again when the run is resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from shoal.core.digests import file_digest
from shoal.core.errors import DataError, ShoalError
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.core.streams import Streams
from shoal.data.intake.table_coding import CODING, TableCoding, coding_of
from shoal.data.intake.windows import WindowRule, window_rule
from shoal.data.partition.table import Partition, load_partition
from shoal.data.sets.prepared import DataSpec, PreparedSet, open_prepared
from shoal.data.sets.sample_files import sample_files
from shoal.engine.messages.wire import Assign, AssignAnswer, Call, Failure
from shoal.engine.settings.hardware import release_freed_memory
from shoal.engine.store.checkpoint import load_index
from shoal.engine.store.codec import (
    StoreError,
    check_digest,
    load_tensors,
    read_sealed,
    save_tensors,
    write_atomic,
    write_sealed,
)
from shoal.engine.store.embedded import EmbeddedFrom, embedded_from
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import WARNING
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.table_file import read_table
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import MethodError
from shoal.methods.registry import METHODS
from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.quality import size_shares
from shoal.methods.scores.sites import SiteDependence, site_dependence
from shoal.methods.scores.verdict import Verdict, verdict_of
from shoal.review.results.stable_names import NIGHT, StableNames, first_names, names_after, with_names

TABLE = "clusters.parquet"
FACTS = "clusters.json"
CENTRES = "centres.safetensors"
FEATURES = "features.safetensors"
TEST = "test"
QUALITY = (
    "neighbour_agreement",
    "site_nmi",
    "silhouette",
    "smallest_cluster",
    "largest_cluster",
    "empty_clusters",
)
"""Numbers about clusters that need no labels, in the order of tables."""


@dataclass(frozen=True)
class ClusteredData:
    """The data set that has the clusters, as new samples are compared with it.

    Args:
        spec: the facts of the set that a method may use.
        features: the columns of a table, in the order in which the model takes them; empty for other kinds.
        on_odd: what is done with new images of another size: `resize` or `skip`.
        embedded: the images and the encoder of a set of vectors that was made of images; None of any other set.
        coding: how the columns of a table become features; None where all features are numbers.
        windows: how windows of series are cut; None for other kinds.
    """

    spec: DataSpec
    features: tuple[str, ...]
    on_odd: str
    embedded: EmbeddedFrom | None = None
    coding: TableCoding | None = None
    windows: WindowRule | None = None


@dataclass(frozen=True)
class ClusterFacts:
    """The content of clusters.json.

    Args:
        round: the last round, after which the clusters are those of the table.
        weights_sha256: digest of the state after the last round.
        clusters: how many there are, empty ones included.
        confidence: what the column of that name holds: `margin` where there are centres, else `probability`.
        quality: numbers that judge the clusters, by name: `QUALITY`, and those of null baselines.
        data: the data set.
        files: sha256 of the table and of the files of tensors, by name.
        comparison: the clusters beside null baselines; None where there are none, as for text.
        sites: how much the client of a sample says about its cluster; None where there is one client.
        verdict: what the clusters are worth; None without `comparison`.
        names: the names that the clusters keep from night to night; None in runs outside nights.
        by_site: samples of each cluster at each site, by its name, where samples lie at sites; a negative number stands
            for one that a site withholds.
    """

    round: int
    weights_sha256: str
    clusters: int
    confidence: str
    quality: Mapping[str, float]
    data: ClusteredData
    files: Mapping[str, str]
    comparison: Comparison | None = None
    sites: SiteDependence | None = None
    verdict: Verdict | None = None
    names: StableNames | None = None
    by_site: Mapping[str, tuple[int, ...]] | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number by which people know each cluster: the one that nights keep, else the model's."""
        return (self.names or first_names(self.clusters)).names


def keep_clusters(run: RunFolder, call: Call, write: Callable[[RunFolder, int, Call], None] | None = None) -> bool:
    """Write the cluster table of a finished run, unless it is there; where there can be none, one event says why.

    Args:
        run: the run's folder.
        call: sends a request to a worker (`shoal.engine.cluster.pool_interface.Pool.call`).
        write: writes it, given the last round; by default one worker finds the clusters of all samples.

    Returns:
        Whether the run has a table now.
    """
    status = run.status()
    if not status.is_finished or not status.round:
        return False
    try:
        if not has_clusters(run):
            release_freed_memory()  # of the messages of the last rounds
            (write or write_clusters)(run, status.round, call)
            release_freed_memory()  # of the table, before the report reads it
        # So that a file that goes missing is noticed.
        digest = file_digest(run.path / FACTS)
        if status.digest_of(FACTS) != digest:
            run.add_to_status(files={**(status.files or {}), FACTS: digest})
    except ShoalError as error:  # the run itself is done, whatever becomes of its table
        expected = can_have_clusters(METHODS[run.settings().method.name])
        run.event_once("clusters_skipped", f"no cluster table: {error}", level=WARNING if expected else None)
        return False
    return True


def has_clusters(run: RunFolder) -> bool:
    """Return whether a finished run has the clusters of its final state, and all files as they were written."""
    status = run.status()
    try:
        facts = read_facts(run.path / FACTS)
        for name, sha256 in facts.files.items():
            check_digest(run.path / name, sha256)
    except StoreError:
        return False
    return status.is_finished and facts.weights_sha256 == status.weights_sha256


def can_have_clusters(kind: type[Method]) -> bool:
    """Return whether a run of a method can have a cluster table.

    A method has none if each client keeps its own model, or if it learns labels.
    """
    gives_clusters = kind.predictor is not Method.predictor or kind.assignment is not Method.assignment
    return expects_clusters(kind) and gives_clusters and not kind.learns_from_labels


def expects_clusters(kind: type[Method]) -> bool:
    """Return whether samples have clusters under a method, in every judgement or at the end."""
    return bool(kind.finds_clusters) or kind.assignment is not Method.assignment


def assign_samples(run: RunFolder, round: int, call: Call) -> AssignAnswer:
    """Have a worker find the clusters of all samples under the state of a round, once more if the worker is lost.

    Raises:
        MethodError: what went wrong in the worker. WorkerLost: the worker was lost twice.
    """
    paths = RoundPaths(run.path, round)
    clients: tuple[ClientFiles, ...] = ()
    if METHODS[run.settings().method.name].evaluation_reads_memory:
        clients = load_index(run, round).clients()
    request = Assign(run.path, round, paths.server, clients)
    try:
        answer = call(request)
    except WorkerLost:
        answer = call(request)
    if isinstance(answer, Failure):
        raise MethodError(answer.error)
    assert isinstance(answer, AssignAnswer)
    return answer


def write_clusters(run: RunFolder, round: int, call: Call) -> None:
    """Write table, centres, features to draw and facts from what a worker finds.

    Args:
        run: the run's folder.
        round: the last round.
        call: sends a request to a worker.

    Raises:
        MethodError: what went wrong in the worker. WorkerLost: the worker was lost twice.
    """
    found = assign_samples(run, round, call)
    prepared = open_prepared(run.folder_of("data"))
    table = cluster_table(prepared, load_partition(run.folder_of("partition")), found)
    names = stable_names(run, table, found.clusters)
    if names is not None:
        table = with_names(table, names)
    files = {
        CENTRES: {"centres": found.centres},
        FEATURES: {"rows": found.shown, "features": found.features},
    }
    for file, arrays in files.items():
        (run.path / file).unlink(missing_ok=True)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
        if tensors:
            save_tensors(run.path / file, tensors, sync=False)
    write_atomic(run.path / TABLE, table.to_parquet(index=False), sync=False)
    owned = table[table["client"].notna()].astype({"cluster": np.int64, "client": np.int64})
    quality = {"silhouette": found.silhouette, **size_shares(np.bincount(found.cluster, minlength=found.clusters))}
    if found.comparison is not None:
        quality |= found.comparison.numbers
    write_facts(
        run,
        quality,
        found.comparison,
        dependence_on_sites(run, owned["cluster"].to_numpy(), owned["client"].to_numpy(), found.clusters),
        round=round,
        clusters=found.clusters,
        confidence="probability" if found.centres is None else "margin",
        data=clustered_data(prepared),
        files={name: file_digest(run.path / name) for name in (TABLE, *files) if (run.path / name).exists()},
        names=names,
    )


def write_facts(
    run: RunFolder,
    quality: Mapping[str, float | None],
    comparison: Comparison | None,
    sites: SiteDependence | None,
    **others: Any,
) -> None:
    """Write clusters.json, with the verdict that follows from a comparison with null baselines, where there is one.

    Args:
        run: the run's folder.
        quality: numbers that judge the clusters; those that are None are left out.
        comparison, sites, others: as of `ClusterFacts`.
    """
    weights = run.status().weights_sha256
    assert weights is not None, "the run is finished"
    if sites is not None:
        quality = {**quality, "site_nmi": sites.nmi}
    known = {name: value for name, value in quality.items() if value is not None}
    verdict = None
    if comparison is not None:
        choice = run.lineage().clusters_chosen
        verdict = verdict_of(comparison, sites, choice.doubt if choice else None)
    facts = ClusterFacts(
        weights_sha256=weights, quality=known, comparison=comparison, sites=sites, verdict=verdict, **others
    )
    write_sealed(run.path / FACTS, record_to_json(facts), sync=False)


def stable_names(run: RunFolder, table: pd.DataFrame, clusters: int) -> StableNames | None:
    """Return the names of a night's clusters, which continue the champion's; None for a run outside nights.

    Args:
        run: the run's folder.
        table: its cluster table.
        clusters: how many it has.
    """
    champions = [event.facts.get("champion") for event in run.events() if event.kind == NIGHT]
    if not champions:
        return None
    champion = champions[-1]
    if champion is None:
        return first_names(clusters)
    free = first_free_name(run)
    try:
        before, names = named_table(RunFolder(run.path.parent / champion))
    except ShoalError as error:
        message = f"the clusters of the champion {champion} cannot be read, so that all clusters get new names: {error}"
        run.event("cluster_names_lost", level=WARNING, message=message)
        return StableNames(tuple(range(free, free + clusters)), free + clusters)
    names = replace(names, next_name=max(names.next_name, free))
    return replace(names_after(before, names, table, clusters), before=champion)


def named_table(run: RunFolder) -> tuple[pd.DataFrame, StableNames]:
    """Return the cluster table of a run and the names of its clusters; without a night these are their numbers.

    Raises:
        StoreError: it has no table, or a file is damaged.
    """
    facts = cluster_facts(run)
    table = read_clusters(run, ("part", "sample", "file", "cluster"))
    if facts is None or table is None:
        raise StoreError(f"run {run.name} has no cluster table: `shoal run --resume {run.name}` writes it")
    return table, facts.names or first_names(facts.clusters)


def first_free_name(run: RunFolder) -> int:
    """Return the smallest number that names no cluster of an earlier run of the same method and data set."""
    settings = run.settings()
    free = 0
    for path in in_order(run.path.parent, f"*_{settings.method.name}_{settings.data.name}_*"):
        if path.parent.name == run.name:
            break  # later runs do not count: a table that is written again has the same names
        with contextlib.suppress(ShoalError):
            facts = read_facts(path.parent / FACTS)
            if RunFolder(path.parent).settings().data.name == settings.data.name:
                free = max(free, (facts.names or first_names(facts.clusters)).next_name)
    return free


def dependence_on_sites(
    run: RunFolder, cluster: np.ndarray, client: np.ndarray, clusters: int
) -> SiteDependence | None:
    """Return how much the client of a sample says about its cluster; None where fewer than two clients have samples.

    Args:
        run: the run's folder.
        cluster, client: of each sample that has a client, int64 (n,).
        clusters: how many there are.
    """
    rng = Streams(run.settings().seed).numpy("cluster or site")
    return site_dependence(cluster, client, clusters, int(client.max(initial=0)) + 1, rng)


def clustered_data(prepared: PreparedSet) -> ClusteredData:
    """Return the facts about a data set that clusters.json holds."""
    return ClusteredData(
        spec=prepared.spec,
        features=tuple(prepared.manifest.extra.get("features", [])),
        on_odd=on_odd_of(prepared),
        embedded=embedded_from(prepared.manifest),
        coding=coding_of(prepared.manifest) if CODING in prepared.manifest.extra else None,
        windows=window_rule(prepared.manifest) if prepared.spec.kind == "series" else None,
    )


def cluster_table(prepared: PreparedSet, partition: Partition, found: AssignAnswer) -> pd.DataFrame:
    """Return a row a sample: training samples of some client, in the order of the set, then all test samples.

    Columns: client (its number; missing where nobody holds the sample), client_name, part (train or test), sample
    (number in that part of the set), file (where the set keeps file names), label (where it has labels: a class's name
    where classes have names), cluster, confidence and, with centres, distance.
    """
    order = np.argsort(partition.sample, kind="stable")  # as `shoal.data.views.view.all_samples` orders them
    test = prepared.spec.test
    if len(found.cluster) != len(order) + test:
        raise MethodError(f"{len(found.cluster)} samples were given a cluster, expected {len(order)} + {test}")
    # Arrays throughout: a list of a million words takes many times their size.
    client = partition.client[order]
    name = np.array(partition_client_names(partition), dtype=object)[client]
    held = pd.DataFrame({"client": client, "client_name": name, "part": "train", "sample": partition.sample[order]})
    table = pd.concat([held, pd.DataFrame({"part": TEST, "sample": np.arange(test)})], ignore_index=True)
    table = table.assign(file=None).astype({"client": "Int64", "client_name": "string", "file": "string"})
    files = sample_files(prepared)
    release_freed_memory()  # reading the names of a million files takes several times their size
    if files is not None:
        rows = files.iloc[np.concatenate([partition.sample[order], prepared.manifest.train + np.arange(test)])]
        table["file"] = rows["file"].array.astype("string")
        # Test samples of a user's own data come from a client too.
        table["client_name"] = table["client_name"].fillna(pd.Series(rows["client"].array))
        number = {name: k for k, name in enumerate(partition.client_names)}
        table["client"] = table["client"].fillna(table["client_name"].map(number).astype("Int64"))
    if (labels := label_names(prepared, partition, order)) is not None:
        table["label"] = pd.array(labels, dtype="string")
    table["cluster"] = found.cluster.astype(np.int32)
    table["confidence"] = found.confidence.astype(np.float32)
    if found.distance is not None:
        table["distance"] = found.distance.astype(np.float32)
    return table


def partition_client_names(partition: Partition) -> list[str]:
    """Return the name of each client, or its number where it has none."""
    return list(partition.client_names) or [str(k) for k in range(partition.clients)]


def label_names(prepared: PreparedSet, partition: Partition, order: np.ndarray) -> np.ndarray | None:
    """Return the label of each row of the table in words; None where the set has no labels.

    Raises:
        DataError: a sample has a label that is no class of the set.
    """
    if prepared.train_y is None:
        return None
    y = np.asarray(prepared.train_y)[partition.sample[order]]
    test = np.full(prepared.spec.test, -1) if prepared.test_y is None else np.asarray(prepared.test_y)
    known = np.concatenate([y, test])
    largest = int(known.max(initial=0))
    words = prepared.manifest.class_names or tuple(map(str, range(largest + 1)))
    if largest >= len(words):
        raise DataError(
            f"{prepared.manifest.name!r} has samples with label {largest}, and names for {len(words)} classes: prepare "
            "or add the set again"
        )
    named: np.ndarray = np.array([*words, None], dtype=object)[np.maximum(known, -1)]
    return named


def on_odd_of(prepared: PreparedSet) -> str:
    """Return what is done with new images of another size: resize where the set itself was made so, else skip."""
    extra = prepared.manifest.extra
    if extra.get("on_odd") == "resize" or extra.get("resized"):
        return "resize"
    return "skip"


def read_facts(path: Path) -> ClusterFacts:
    """Read clusters.json.

    Raises:
        StoreError: it is missing or damaged.
    """
    try:
        return record_from_json(ClusterFacts, read_sealed(path))
    except BadRecord as error:
        raise StoreError(f"{path} does not hold facts about clusters: {error}") from None


def cluster_facts(run: RunFolder) -> ClusterFacts | None:
    """Return what clusters.json holds; None where the run has no cluster table.

    Raises:
        StoreError: the file is damaged, of another state than the run ended with, or has gone missing.
    """
    path = run.path / FACTS
    sha256 = run.status().digest_of(FACTS)
    if not path.exists() and sha256 is None:
        return None
    with written_again(run):
        facts = read_facts(path)
        check_digest(path, sha256)
    return facts


@contextlib.contextmanager
def written_again(run: RunFolder) -> Iterator[None]:
    """Add to the error about a damaged file of a run's clusters how it is written again."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"run {run.name}: {error}; `shoal run --resume {run.name}` writes it again") from error


def read_clusters(run: RunFolder, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """Read the cluster table of a run, a row a sample (`cluster_table`); None where it has none.

    Args:
        run: the run's folder.
        columns: only these; None: all.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    facts = cluster_facts(run)
    if facts is None or TABLE not in facts.files:
        return None  # there are no clusters, or their tables lie at sites
    with written_again(run):
        return read_table(run.path / TABLE, facts.files[TABLE], columns)


def read_cluster_tensors(run: RunFolder, name: str) -> dict[str, torch.Tensor] | None:
    """Read the tensors of `CENTRES` or `FEATURES`; None where the run has no such file.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    facts = cluster_facts(run)
    if facts is None or name not in facts.files:
        return None
    with written_again(run):
        return load_tensors(run.path / name, sha256=facts.files[name])[0]


def quality(run: RunFolder) -> dict[str, float]:
    """Return the numbers that judge the clusters: those that need no labels first, then those of null baselines."""
    facts = cluster_facts(run)
    if facts is None:
        return {}
    first = {name: facts.quality[name] for name in QUALITY if name in facts.quality}
    return {**first, **facts.quality}
