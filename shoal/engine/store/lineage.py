"""Where a run comes from: code, data, partition, settings, machine; from any number one can walk back to the bytes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.data.partition.table import Partition
from shoal.data.prepared import Prepared
from shoal.engine.settings.hardware import describe
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.codec import file_digest
from shoal.engine.store.relocation import stored_path

PACKAGES = ("shoal", "torch", "torchvision", "numpy", "pandas", "scikit-learn", "prefect", "mlflow", "dvc")

_SCP = re.compile(r"[\w.-]+@(?P<host>[\w.-]+):(?P<path>[^/].*)")
"""An address as scp writes it: user@host:path."""


def dvc_hash(path: Path) -> str:
    """The md5 that DVC gives a file or a folder.

    A folder's is the md5 of the JSON list of its files' md5 and relative paths, with the suffix `.dir`; so a run
    names the same data as `dvc.lock`, and needs no DVC to do so.
    """
    if path.is_file():
        return file_digest(path, hashlib.md5)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    listed = [{"md5": file_digest(p, hashlib.md5), "relpath": p.relative_to(path).as_posix()} for p in files]
    listed.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest() + ".dir"


def git_state(root: Path) -> dict[str, Any]:
    """The commit at `root`, whether the tree differs from it, and its page where it was cloned from a web address.

    All are None outside git.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain") if commit else None
    page = commit_page(git("remote", "get-url", "origin"), commit) if commit else None
    return {"commit": commit, "dirty": None if changed is None else bool(changed), "page": page}


def commit_page(remote: str | None, commit: str) -> str | None:
    """Where a browser finds a commit; None where the repository was cloned from a folder, or from nowhere.

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
    there = urlsplit(remote or "")
    if there.scheme not in ("http", "https", "ssh") or not there.hostname:
        return None
    web = there.scheme != "ssh"  # whose port is not that of the page
    host = there.netloc.rpartition("@")[2] if web else there.hostname
    path = there.path.strip("/").removesuffix(".git")
    return f"{there.scheme if web else 'https'}://{host}/{path}/commit/{commit}"


def versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers or the records."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def changes_since(before: dict[str, Any]) -> list[str]:
    """How code and packages differ from those that a run was started with, each in a few words.

    Args:
        before: the run's lineage.
    """
    found = []
    now, then = versions(), before.get("versions", {})
    for name in PACKAGES:
        if name in then and then[name] != now[name]:
            found.append(f"{name} {then[name]} is now {now[name]}")
    state, code = git_state(Path(__file__).parent), before.get("git", {})
    if code.get("commit") and state["commit"] and code["commit"] != state["commit"]:
        found.append(f"commit {code['commit'][:10]} is now {state['commit'][:10]}")
    return found


def lineage(
    settings: Settings, prepared: Prepared, partition_folder: Path, partition: Partition, resolved: dict[str, Any]
) -> dict[str, Any]:
    """Everything a run remembers of where it comes from, as JSON.

    Args:
        settings: of the run.
        prepared: its data set.
        partition_folder, partition: its partition.
        resolved: device and precision, as settled for this run.
    """
    manifest = prepared.manifest
    return {
        "git": git_state(Path(__file__).parent),
        "data": {
            "name": manifest.name,
            "folder": stored_path(prepared.folder),
            "digest": manifest.digest,
            "dvc": dvc_hash(prepared.folder),
            "source": manifest.source,
            "subset": manifest.subset,
        },
        "partition": {
            "folder": stored_path(partition_folder),
            "digest": partition.digest,
            "dvc": dvc_hash(partition_folder),
        },
        "settings_sha256": settings.digest(),
        "resolved": resolved,
        "hardware": describe(),
        "versions": versions(),
    }
