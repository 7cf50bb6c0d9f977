"""Where a run comes from: code, data, partition, settings, machine; from any number one can walk back to the bytes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from shoal.data.partition.table import Partition
from shoal.data.prepared import Prepared
from shoal.engine.settings.hardware import describe
from shoal.engine.settings.machine import Machine, Resolved
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.choice import Choice
from shoal.engine.store.codec import file_digest
from shoal.engine.store.method_choice import MethodChoice
from shoal.engine.store.relocation import stored_path
from shoal.models.frozen import EncoderVersion, encoder_version, is_pretrained

PACKAGES = ("shoal", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "prefect", "mlflow", "dvc")

NO_CODE = (":!dvc.lock", ":!params.yaml", ":!prefect.yaml", ":!results", ":!*.dvc")
"""What a run reads and what it writes, as git's pathspecs: settings and data of a run have digests of their own."""
NEW_CODE = ("*.py", "shoal/*")
"""Which of the files that git does not know are code, as git's pathspecs: tables and pictures of the user are not."""

_SCP = re.compile(r"[\w.-]+@(?P<host>[\w.-]+):(?P<path>[^/].*)")
"""An address as scp writes it: user@host:path."""


@dataclass(frozen=True)
class GitState:
    """The code that was run; every entry is None outside git.

    Args:
        commit: hash of the commit.
        dirty: whether the code differed from it: a file of the commit but `NO_CODE`, or new code in no commit.
        page: where a browser finds the commit, if it has a web page.
    """

    commit: str | None
    dirty: bool | None
    page: str | None


@dataclass(frozen=True)
class DataVersion:
    """The prepared data set of a run.

    Args:
        name: of the set.
        folder: where it lies, relative to the home where it lies below it.
        digest: sha256 of its arrays.
        dvc: the md5 that DVC gives its folder.
        source: where the set comes from.
        subset: what part of the set it is; empty for a complete one.
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
class FlowRun:
    """The Prefect flow run that worked on a run last: its id, and its page where it has one."""

    flow_run: str
    page: str | None


@dataclass(frozen=True)
class StartingState:
    """The state of another run that a run started from.

    Args:
        run: name of the other run.
        round: the round after which it had that state.
        server_sha256: digest of the state.
        file_sha256: digest of the file that keeps it in the folder of the run that started from it.
    """

    run: str
    round: int
    server_sha256: str
    file_sha256: str


@dataclass(frozen=True)
class Environment:
    """What computes: code, machine, and the version of each package by its name."""

    git: GitState
    hardware: Machine
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Lineage:
    """Where a run comes from; lineage.json holds it.

    Args:
        git: the code.
        data: the data set.
        partition: its partition.
        settings_sha256: digest of the settings.
        resolved: device and precision.
        hardware: the machine.
        versions: of the packages that decide the numbers or the records, by name.
        id: a random number, the same wherever the run's folder lies.
        settings_file_sha256: digest of settings.yaml.
        clusters_chosen: how `model.clusters: auto` was settled.
        method_chosen: how `method.name: auto` was settled.
        origin: the state that the run started from; None: the method's own.
        encoder: the pretrained encoder that it uses; None: it uses none.
        prefect: the flow run that worked on it last.
        mlflow_run: id of its run in MLflow.
        mlflow_uri: address of that MLflow, without secrets.
        mlflow_parent: id of the MLflow run that it is nested under.
    """

    git: GitState
    data: DataVersion
    partition: PartitionVersion
    settings_sha256: str
    resolved: Resolved
    hardware: Machine
    versions: Mapping[str, str]
    id: str | None = None
    settings_file_sha256: str | None = None
    clusters_chosen: Choice | None = None
    method_chosen: MethodChoice | None = None
    origin: StartingState | None = None
    encoder: EncoderVersion | None = None
    prefect: FlowRun | None = None
    mlflow_run: str | None = None
    mlflow_uri: str | None = None
    mlflow_parent: str | None = None

    @property
    def encoder_sha256(self) -> str:
        """Digest that the weights of the run's pretrained encoder have; empty where it uses none."""
        if self.encoder is None:
            return ""
        return self.encoder.sha256

    @property
    def environment(self) -> Environment:
        """What computed the run."""
        return Environment(self.git, self.hardware, self.versions)

    def with_folders(self, data: str, partition: str) -> Lineage:
        """Return the lineage of the same run on a copy of its data and partition in these folders."""
        moved_data = replace(self.data, folder=data)
        return replace(self, data=moved_data, partition=replace(self.partition, folder=partition))


def dvc_hash(path: Path) -> str:
    """Return the md5 that DVC gives a file or a folder.

    A folder's is the md5 of the JSON list of its files' md5 and relative paths, with the suffix `.dir`; so a run
    names the same data as `dvc.lock`, and needs no DVC to do so.
    """
    if path.is_file():
        return file_digest(path, hashlib.md5)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    listed = [{"md5": file_digest(p, hashlib.md5), "relpath": p.relative_to(path).as_posix()} for p in files]
    listed.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest() + ".dir"


def git_state(root: Path) -> GitState:
    """Return the commit at `root`, whether the code differs from it, and its web page, if it has one.

    All are None outside git.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if not commit:
        return GitState(commit, dirty=None, page=None)
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *NO_CODE)
    new = git("ls-files", "--others", "--exclude-standard", "--", *NEW_CODE)
    page = commit_page(git("remote", "get-url", "origin"), commit)
    dirty = None if changed is None or new is None else bool(changed or new)
    return GitState(commit, dirty, page)


def commit_page(remote: str | None, commit: str) -> str | None:
    """Return where a browser finds a commit; None where the repository was cloned from a folder, or from nowhere.

    Args:
        remote: the address that the repository was cloned from.
        commit: its hash.

    >>> commit_page("git@host.example:team/federation.git", "1a2b")
    'https://host.example/team/federation/commit/1a2b'
    >>> commit_page("https://me:word@host.example/team/federation", "1a2b")
    'https://host.example/team/federation/commit/1a2b'
    >>> commit_page("/srv/git/federation.git", "1a2b")
    """
    if found := _SCP.fullmatch(remote or ""):
        remote = f"ssh://{found['host']}/{found['path']}"
    address = urlsplit(remote or "")
    if address.scheme not in ("http", "https", "ssh") or not address.hostname:
        return None
    path = address.path.strip("/").removesuffix(".git")
    if address.scheme == "ssh":  # whose port is not that of the page
        return f"https://{address.hostname}/{path}/commit/{commit}"
    host = address.netloc.rpartition("@")[2]
    return f"{address.scheme}://{host}/{path}/commit/{commit}"


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide the numbers or the records."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def here() -> Environment:
    """Return the code, the machine and the packages at hand."""
    return Environment(git_state(Path(__file__).parent), describe(), versions())


def changes_since(before: Lineage) -> list[str]:
    """Return how code and packages differ from those that a run was started with, each in a few words."""
    found = []
    now = versions()
    for name in PACKAGES:
        if name in before.versions and before.versions[name] != now[name]:
            found.append(f"{name} {before.versions[name]} is now {now[name]}")
    then = before.git.commit
    commit = git_state(Path(__file__).parent).commit
    if then and commit and then != commit:
        found.append(f"commit {then[:10]} is now {commit[:10]}")
    return found


def make_lineage(
    settings: Settings, prepared: Prepared, partition_folder: Path, partition: Partition, resolved: Resolved
) -> Lineage:
    """Return where a run comes from that is about to start.

    Args:
        settings: of the run.
        prepared: its data set.
        partition_folder, partition: its partition.
        resolved: device and precision, as settled for this run.
    """
    manifest = prepared.manifest
    environment = here()
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
        versions=environment.versions,
        encoder=encoder_of_run(settings, prepared),
    )


def encoder_of_run(settings: Settings, prepared: Prepared) -> EncoderVersion | None:
    """Return the pretrained encoder that a run uses; None where it uses none.

    Raises:
        EncoderError: it is not installed.
    """
    name = settings.model.encoder
    if prepared.manifest.kind != "image" or not is_pretrained(name):
        return None
    return encoder_version(name)
