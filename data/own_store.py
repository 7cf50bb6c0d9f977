"""Writing a set of the user's own to the store: test part, file names, and what is appended to a set that is there.

Samples that a set has keep their order, numbers and part when others are appended, so that what was computed on them
stays comparable.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.copies import Copies, find_copies, note_copies, on_one_side
from shoal.data.held_out import LEAST, held_out
from shoal.data.intake import Intake, record
from shoal.data.prepare import own_folder
from shoal.data.prepared import Kind, Manifest, Prepared, open_prepared, write_prepared
from shoal.data.sample_files import DIGEST, FILES, files_table, sample_files
from shoal.data.writing import writing

Rest = ParamSpec("Rest")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
VERSIONS = "versions"
LISTS = ("skipped", "resized", "adapted")
"""What the manifest's `extra` says of single files, as pairs of path and reason; appending lengthens these."""


@dataclass(frozen=True)
class Batch:
    """Samples as they were read.

    `x` is (n, ...); `label` has a label a sample, or is None without labels; `client` and `file` have a name a sample.
    `clients` are the names in the order in which they are numbered.
    """

    kind: Kind
    x: np.ndarray
    label: list[str] | None
    client: list[str]
    clients: list[str]
    file: list[str]
    source: str
    licence: str
    extra: dict[str, Any] = field(default_factory=dict)
    intake: Intake = field(default_factory=Intake)
    """What was adapted and left out; its names are written beside the set."""


def exclusive(
    add: Callable[Concatenate[Path, str, Path, Rest], Prepared],
) -> Callable[Concatenate[Path, str, Path, Rest], Prepared]:
    """Let one process at a time do what adds to the set of a name, from reading the set to writing its new version.

    Args:
        add: takes what is added, the name and the store first.
    """

    @functools.wraps(add)
    def waiting(source: Path, name: str, store: Path, /, *rest: Rest.args, **options: Rest.kwargs) -> Prepared:
        check_spelling(name)
        with writing(own_folder(store, name)):
            return add(source, name, store, *rest, **options)

    return waiting


def check_spelling(name: str) -> None:
    """Refuse what cannot name a set of the user's own.

    Raises:
        DataError: says what can.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"{name!r} cannot name a data set: use small letters, digits, - and _")


def store_batch(
    name: str,
    store: Path,
    batch: Batch,
    test: float,
    seed: int,
    onto: Prepared | None = None,
    *,
    by_hash: bool = False,
) -> Prepared:
    """Write a batch as a set of the user's own, or append it to one.

    Args:
        name: of the set.
        store: the store.
        batch: the samples; `sample_files` of `onto` has none of its files.
        test: share of each client's samples in the batch that becomes the test split.
        seed: seed for drawing the test split.
        onto: the set to append to. Its samples come first in each part, in their order.
        by_hash: the test split is that of `shoal.data.held_out`, which does not depend on what else is in the batch.
            Either way copies of one image lie on one side of it.

    Returns:
        The set. In `extra["versions"]` stand digest and counts of the versions that it was appended to, the oldest
        first: each is the first `train` and `test` samples of the set.

    Raises:
        DataError: `test` out of bounds, or a batch that does not fit the set.
    """
    if not 0 <= test < 1:
        raise DataError(f"test is {test}, expected at least 0 and below 1")
    if onto is not None:
        _check_fit(batch, onto)
    known = list(onto.manifest.extra["clients"]) if onto else []
    clients = [*known, *(client for client in batch.clients if client not in known)]
    number = {client: k for k, client in enumerate(clients)}
    owner = np.array([number[client] for client in batch.client], dtype=np.int64)
    held = _held(batch, owner, clients, test, seed, onto, by_hash)
    y: np.ndarray | None = None
    class_names = onto.manifest.class_names if onto else ()
    if batch.label is not None:
        y, class_names = number_labels(batch.label, class_names)
    files, client_of, part = list(batch.file), list(batch.client), held
    column = owner[~held]
    arrays: dict[str, np.ndarray | None] = {
        "train_x": batch.x[~held],
        "train_y": None if y is None else y[~held],
        "test_x": batch.x[held] if held.any() else None,
        "test_y": y[held] if y is not None and held.any() else None,
    }
    extra = {**batch.extra, "clients": clients}
    source, licence = batch.source, batch.licence
    if onto is not None:
        old = _origins(onto)
        files, client_of = [*old["file"], *files], [*old["client"], *client_of]
        part = np.concatenate([(old["part"] == "test").to_numpy(), held])
        column = np.concatenate([onto.column("client"), column])
        before = (onto.train_x, onto.train_y, onto.test_x, onto.test_y)
        arrays = {key: _joined(a, b) for (key, b), a in zip(arrays.items(), before, strict=True)}
        m = onto.manifest
        this = {"digest": m.digest, "train": m.train, "test": m.test}
        extra = {**m.extra, **extra, VERSIONS: [*m.extra.get(VERSIONS, []), this]}
        for key in LISTS:
            if key in extra:
                said = onto.manifest.extra.get(key, [])
                extra[key] = [*said, *(entry for entry in batch.extra.get(key, []) if entry not in said)]
        source = f"{onto.manifest.source}; then {batch.source}"
        if licence == onto.manifest.licence or licence == "not stated":
            licence = onto.manifest.licence
        else:
            licence = f"{onto.manifest.licence}; then {licence}"
    table = files_table(files, client_of, part)
    manifest = Manifest(
        name=name,
        kind=batch.kind,
        shape=tuple(batch.x.shape[1:]),
        classes=len(class_names) or None,
        train=int((~part).sum()),
        test=int(part.sum()),
        source=source,
        licence=licence,
        class_names=class_names,
        extra={**extra, DIGEST: hashlib.sha256(table).hexdigest()},
    )
    folder = own_folder(store, name)
    write_prepared(folder, manifest, arrays, {"client": column}, {FILES: table})
    record(folder, batch.intake, append=onto is not None)
    return open_prepared(folder)


def _held(
    batch: Batch,
    owner: np.ndarray,
    clients: list[str],
    test: float,
    seed: int,
    onto: Prepared | None,
    by_hash: bool,
) -> np.ndarray:
    """Which samples are held out, bool (n,); copies of one image lie on one side."""
    known = len(onto.manifest.extra["clients"]) if onto else 0
    count = len(clients)
    apart = Copies(np.arange(len(owner)), {})
    copies = find_copies(batch.x, onto) if batch.kind == "image" else apart
    if by_hash:
        kept = np.bincount(onto.column("client"), minlength=count) if onto else np.zeros(count, dtype=int)
        held = held_out(batch.x, batch.client, test, seed, {c: int(n) for c, n in zip(clients, kept, strict=True)})
        lacking = [max(LEAST - int(n), 0) for n in kept]
    else:
        held = _drawn(owner, known, count, test, seed, onto, copies.first)
        lacking = [int(k >= known) for k in range(count)]
    if copies.count():
        held = on_one_side(held, copies, owner, lacking)
        note_copies(batch.intake, copies, held, batch.file, split=bool(held.any()) or bool(onto and onto.manifest.test))
    return held


def _drawn(
    owner: np.ndarray,
    known: int,
    clients: int,
    test: float,
    seed: int,
    onto: Prepared | None,
    first: np.ndarray,
) -> np.ndarray:
    """A drawn share of each client's samples, bool (n,): each with the copies of it that the client has."""
    purpose = "own test part" if onto is None else f"own test part after {onto.manifest.train + onto.manifest.test}"
    held = np.zeros(len(owner), dtype=bool)
    for k in range(clients):
        rows = np.flatnonzero(owner == k)
        # At least one sample of each new client stays for training.
        count = min(round(len(rows) * test), len(rows) - (k >= known))
        copies = np.bincount(first[rows], minlength=len(owner))
        taken = int(held[first[rows]].sum())  # copies of what clients before hold out
        for row in Streams(seed, client=k).numpy(purpose).permutation(rows[first[rows] == rows]):
            if taken + copies[row] <= count:
                held[row] = True
                taken += copies[row]
    result: np.ndarray = held[first]
    return result


def _check_fit(batch: Batch, onto: Prepared) -> None:
    m = onto.manifest
    if batch.kind != m.kind or batch.x.shape[1:] != m.shape:
        raise DataError(
            f"{m.name!r} holds {m.kind}s of shape {_by(m.shape)}, and these are {batch.kind}s of shape "
            f"{_by(batch.x.shape[1:])}: they cannot be appended to it"
        )
    if (batch.label is None) != (m.classes is None):
        has, needs = ("has labels", "needs") if batch.label is None else ("has no labels", "cannot take")
        raise DataError(f"{m.name!r} {has}: what is appended to it {needs} labels")


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _origins(onto: Prepared) -> pd.DataFrame:
    table = sample_files(onto)
    if table is None:
        raise DataError(
            f"{onto.manifest.name!r} was added by a version of Shoal that kept no file names, so that nothing can be "
            "appended to it: add all of it again with --force"
        )
    return table


def known_files(onto: Prepared) -> dict[str, tuple[str, int]]:
    """The part and index of each file of a set.

    Raises:
        DataError: the set was added by a version that kept no file names.
    """
    table = _origins(onto)
    places = zip(table["part"], table["index"], strict=True)
    return {file: (part, int(index)) for file, (part, index) in zip(table["file"], places, strict=True)}


def _joined(before: np.ndarray | None, after: np.ndarray | None) -> np.ndarray | None:
    if before is None or after is None:
        return after if before is None else np.asarray(before)
    return np.concatenate([before, after])


def number_labels(labels: list[str], known: tuple[str, ...] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """Each label's number, int64, and the names of all.

    Known names keep their numbers; new ones follow in the order of their names, whole numbers in numerical order.
    """
    new = sorted(
        set(labels) - set(known),
        key=lambda text: (0, int(text), text) if re.fullmatch(r"-?[0-9]{1,18}", text) else (1, 0, text),
    )
    names = (*known, *new)
    number = {label: k for k, label in enumerate(names)}
    return np.array([number[label] for label in labels], dtype=np.int64), names
