"""The lineage of a run: the code, data, partition, settings and machine from which every number of it follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.core.digests import file_digest
from shoal.core.errors import PartitionError
from shoal.data.partition.table import Partition
from shoal.data.sets.elsewhere import clients_of_site
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.remedy import SITES
from shoal.engine.settings import places
from shoal.engine.settings.hardware import describe
from shoal.engine.settings.machine import Machine, RunHardware
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.choice import Choice
from shoal.engine.store.code_version import GitState, ShoalVersion, package_version, project_state, shoal_version
from shoal.engine.store.method_choice import MethodChoice
from shoal.engine.store.relocation import stored_path
from shoal.methods.registry import ADDED, METHODS
from shoal.models.frozen import EncoderVersion, encoder_version, is_pretrained

LAYOUT: Literal[4] = 4
"""The layout of a run's folder; a run of another layout is refused."""
PACKAGES = ("shoal", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "prefect", "mlflow", "dvc")


@dataclass(frozen=True)
class DataVersion:
    """The prepared data set of a run.

    Args:
        name: name of the set.
        folder: its folder; relative to the home if it lies below it.
        digest: sha256 of its arrays.
        dvc: the md5 that DVC computes of its folder.
        source: origin of the set.
        subset: the part of the set that was prepared; empty: all of it.
    """

    name: str
    folder: str
    digest: str
    dvc: str
    source: str
    subset: str


@dataclass(frozen=True)
class PartitionVersion:
    """The partition of a run's data among clients; folder, digest and dvc as of `DataVersion`."""

    folder: str
    digest: str
    dvc: str


@dataclass(frozen=True)
class SiteVersion:
    """A site of a run whose samples lie at sites.

    Args:
        digest: of its set.
        clients: ids of its clients in the run, ascending.
    """

    digest: str
    clients: tuple[int, ...]


@dataclass(frozen=True)
class StartingState:
    """The state of another run that a run started from.

    Args:
        run: name of the other run.
        round: the round of the state.
        server_sha256: digest of the state, of which the folder of the new run has a copy.
    """

    run: str
    round: int
    server_sha256: str


@dataclass(frozen=True)
class Environment:
    """The project, the machine, the version of each package by name, and Shoal; as of `Lineage`."""

    git: GitState
    hardware: Machine
    versions: Mapping[str, str]
    shoal: ShoalVersion


@dataclass(frozen=True)
class Lineage:
    """The origin of a run: lineage.json, which is complete before the first round and stays as it is.

    Args:
        git: the user's project.
        data: the data set.
        partition: its partition.
        settings_sha256: digest of the settings.
        resolved: device and precision.
        hardware: the machine.
        versions: of the packages that decide the numbers or the records, by name.
        shoal: the Shoal that computed it.
        layout: of the run's folder.
        id: a random number, which stays the same if the run's folder is moved.
        settings_file_sha256: digest of settings.yaml.
        clusters_chosen: the choice for `model.clusters: auto`.
        method_chosen: the choice for `method.name: auto`.
        origin: the state of another run from which this one started; None: it started from the method's own.
        encoder: the pretrained encoder; None: the run uses none.
        sites: the sites at which the samples lie, by name; empty: they lie here.
    """

    git: GitState
    data: DataVersion
    partition: PartitionVersion
    settings_sha256: str
    resolved: RunHardware
    hardware: Machine
    versions: Mapping[str, str]
    shoal: ShoalVersion
    layout: Literal[4]
    id: str = ""
    settings_file_sha256: str = ""
    clusters_chosen: Choice | None = None
    method_chosen: MethodChoice | None = None
    origin: StartingState | None = None
    encoder: EncoderVersion | None = None
    sites: Mapping[str, SiteVersion] = field(default_factory=dict)

    @property
    def encoder_sha256(self) -> str:
        """Digest of the weights of the run's pretrained encoder; empty: it uses none."""
        if self.encoder is None:
            return ""
        return self.encoder.sha256

    def with_folders(self, data: str, partition: str) -> Lineage:
        """Return the same lineage with other folders of data and partition, which hold copies."""
        moved_data = replace(self.data, folder=data)
        return replace(self, data=moved_data, partition=replace(self.partition, folder=partition))


def dvc_hash(path: Path) -> str:
    """Return the md5 that DVC computes of a file or a folder, so that a run without DVC names data as `dvc.lock` does.

    For a folder this is the md5 of the JSON list of its files' md5 and relative paths, with the suffix `.dir`.
    """
    if path.is_file():
        return file_digest(path, "md5")
    files = sorted(p for p in path.rglob("*") if p.is_file())
    entries = [{"md5": file_digest(p, "md5"), "relpath": p.relative_to(path).as_posix()} for p in files]
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide the numbers or the records."""
    return {name: package_version(name) for name in PACKAGES}


def method_version(method: str) -> dict[str, str]:
    """Return the package of a method and its version; empty for a built-in one."""
    return dict([ADDED.packages[method]]) if method in ADDED.packages else {}


def current_environment() -> Environment:
    """Return the project, Shoal, machine and packages of this process."""
    return Environment(project_state(places.home()), describe(), versions(), shoal_version())


def changes_since(before: Lineage) -> list[str]:
    """Return how Shoal and the packages differ from those with which a run was started, each in a few words."""
    changes = []
    now = versions() | dict(ADDED.packages.values())
    for name in now:
        if name in before.versions and before.versions[name] != now[name]:
            changes.append(f"{name} {before.versions[name]} is now {now[name]}")
    sha256 = shoal_version().sha256
    if before.shoal.sha256 != sha256:
        changes.append(f"Shoal's files {before.shoal.sha256[:10]} are now {sha256[:10]}")
    return changes


def make_lineage(
    settings: Settings, prepared: PreparedSet, partition_folder: Path, partition: Partition, resolved: RunHardware
) -> Lineage:
    """Return the lineage of a new run.

    Args:
        settings: settings of the run.
        prepared: its data set.
        partition_folder, partition: its partition.
        resolved: its device and precision.
    """
    manifest = prepared.manifest
    environment = current_environment()
    return Lineage(
        git=environment.git,
        data=DataVersion(
            manifest.name,
            stored_path(prepared.folder),
            manifest.digest,
            dvc_hash(prepared.folder),
            manifest.source,
            manifest.subset,
        ),
        partition=PartitionVersion(stored_path(partition_folder), partition.digest, dvc_hash(partition_folder)),
        settings_sha256=settings.digest(),
        resolved=resolved,
        hardware=environment.hardware,
        versions={**environment.versions, **method_version(settings.method.name)},
        shoal=environment.shoal,
        layout=LAYOUT,
        encoder=encoder_of_run(settings, prepared),
        sites=sites_of_run(settings, prepared, partition),
    )


def sites_of_run(settings: Settings, prepared: PreparedSet, partition: Partition) -> dict[str, SiteVersion]:
    """Return the sites at which the samples of a run lie; empty where they lie here.

    Raises:
        PartitionError: a client would have samples of several sites.
    """
    sites: dict[str, Any] = prepared.manifest.extra.get(SITES, {})
    if not sites:
        return {}
    owner = prepared.owners("train")[partition.sample]
    site = np.searchsorted([clients_of_site(prepared.manifest, name).stop for name in sorted(sites)], owner, "right")
    mixed = any(len(np.unique(site[partition.rows(client)])) > 1 for client in range(partition.clients))
    if mixed or METHODS[settings.method.name].pooled:
        raise PartitionError(
            f"samples of {prepared.manifest.name!r} cannot leave its sites, so that a client has those of one site: "
            "leave partition.kind out, and choose a method that does not pool all samples"
        )
    versions = {}
    for number, name in enumerate(sorted(sites)):
        clients = np.unique(partition.client[site == number]).tolist()
        if clients:  # else all of its clients are too small
            versions[name] = SiteVersion(sites[name]["digest"], tuple(clients))
    return versions


def encoder_of_run(settings: Settings, prepared: PreparedSet) -> EncoderVersion | None:
    """Return the pretrained encoder that a run uses; None if it uses none.

    Raises:
        EncoderError: it is not installed.
    """
    name = settings.model.encoder
    if prepared.manifest.kind != "image" or not is_pretrained(name):
        return None
    return encoder_version(name)
