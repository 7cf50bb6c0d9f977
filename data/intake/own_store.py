"""Writing of the user's own sets to the store: test part, file names, and appending to an existing set.

Samples of a set keep their order, numbers and part when others are appended, so that results on them stay comparable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.data.intake.copies import Copies, draw_test_part, find_copies, note_copies
from shoal.data.intake.images import RejectedFile
from shoal.data.intake.names import in_order
from shoal.data.intake.options import NOT_STATED
from shoal.data.intake.own_writing import Part, write_by_client
from shoal.data.sets.intake_notes import Intake, record
from shoal.data.sets.lazy_array import ArrayRows, ConcatenatedArray
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Kind, Manifest, PreparedSet, open_prepared
from shoal.data.sets.sample_files import sample_files

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
SAMPLES = {"image": "image", "series": "window", "vector": "row"}
"""What a sample of each kind of set is called."""
VERSIONS = "versions"
"""Entry of a manifest's `extra`: digest and counts of the versions that a set was appended to, the oldest first.

Each version is the first `train` and `test` samples of the set."""


@dataclass(frozen=True)
class Batch:
    """Samples as they were read from a folder or a table.

    `x` is (n, ...); `label` has a label a sample, or is None without labels; `client` and `file` have a name a sample.
    `clients` are the names in the order of their numbers, and `source` names what was read, such as "table t.csv".
    """

    kind: Kind
    x: np.ndarray
    label: list[str] | None
    client: list[str]
    clients: list[str]
    file: list[str]
    source: str
    extra: dict[str, Any] = field(default_factory=dict)
    intake: Intake = field(default_factory=Intake)
    """Notes of what was adapted and left out; their names are written beside the set."""


@dataclass(frozen=True)
class Arrivals:
    """What a folder or file has that a set lacks.

    Attributes:
        batch: the samples to add; None where nothing is new.
        left_out: files that cannot be added, with reasons.
        files: how many files the batch is made of.
        intake: notes of what was taken, adapted and left out.
    """

    batch: Batch | None
    left_out: Sequence[RejectedFile]
    files: int
    intake: Intake


class NothingNew(DataError):
    """The set has all samples already."""


def check_spelling(name: str) -> None:
    """Refuse a text that cannot name a set of the user's own.

    Raises:
        DataError: says what a name may be.
    """
    if not _NAME.fullmatch(name):
        raise DataError(f"{name!r} cannot name a data set: use small letters, digits, - and _")


def store_batch(
    name: str,
    store: Path,
    batch: Batch,
    test: float,
    seed: int,
    onto: PreparedSet | None = None,
    licence: str = NOT_STATED,
) -> PreparedSet:
    """Write a batch as a set of the user's own, or append it to one; copies of one image lie in one part.

    Args:
        name: of the set.
        store: the store.
        batch: the samples; none of its files is in `onto`.
        test: share of each client's samples in the batch that becomes the test split.
        seed: seed for drawing the test split.
        onto: the set to append to. Its samples come first in each part, in their order.
        licence: of the samples.

    Raises:
        DataError: `test` is out of bounds, or the batch does not fit the set.
    """
    _check_fit(batch, onto, test)
    clients = list(dict.fromkeys([*(onto.manifest.extra["clients"] if onto else ()), *batch.clients]))
    owner = pd.Index(clients).get_indexer(batch.client).astype(np.int64)
    in_test = _test_rows(batch, owner, len(clients), test, seed, onto)
    y: np.ndarray | None = None
    class_names = onto.manifest.class_names if onto else ()
    if batch.label is not None:
        y, class_names = number_labels(batch.label, class_names)
    parts = {"train": _part(batch, y, owner, ~in_test), "test": _part(batch, y, owner, in_test)}
    source = f"{batch.source}, {len(batch.x)} {SAMPLES[batch.kind]}s of {len(batch.clients)} clients"
    extra = {**batch.extra, "clients": clients}
    if onto is not None:
        about = onto.manifest
        _note_new_names(batch.intake, about, clients, class_names)
        parts = {part: _after(onto, part, samples) for part, samples in parts.items()}
        source = f"{about.source}; then {source}"
        if licence in (about.licence, NOT_STATED):
            licence = about.licence
        else:
            licence = f"{about.licence}; then {licence}"
        extra = {**about.extra, **extra, VERSIONS: versions_of(about)}
    manifest = Manifest(
        name=name,
        kind=batch.kind,
        shape=tuple(batch.x.shape[1:]),
        classes=len(class_names) or None,
        train=len(parts["train"].owner),
        test=len(parts["test"].owner),
        source=source,
        licence=licence,
        class_names=class_names,
        extra=extra,
    )
    write_by_client(own_folder(store, name), manifest, parts)
    record(own_folder(store, name), batch.intake, append=onto is not None)
    return open_prepared(own_folder(store, name))


def store_labels(onto: PreparedSet, label: list[str], source: str, intake: Intake) -> PreparedSet:
    """Write a set of the user's own that has no labels again, with labels; its samples, numbers and parts stay.

    Args:
        onto: the set.
        label: of each sample, those of the training part first.
        source: what the labels come from.
        intake: notes of the labels.
    """
    about = onto.manifest
    y, class_names = number_labels(label)
    parts = {}
    for part, labels in (("train", y[: about.train]), ("test", y[about.train :])):
        nothing_new = Part(onto.train_x[:0], labels, np.empty(0, np.int64), [])
        parts[part] = replace(_after(onto, part, nothing_new), y=labels)
    manifest = replace(
        about,
        classes=len(class_names),
        class_names=class_names,
        source=f"{about.source}; then labels of {source}",
        extra={**about.extra, VERSIONS: versions_of(about)},
    )
    write_by_client(onto.folder, manifest, parts)
    record(onto.folder, intake, append=True)
    return open_prepared(onto.folder)


def _note_new_names(intake: Intake, about: Manifest, clients: Sequence[str], labels: Sequence[str]) -> None:
    """Note the clients and labels that a set did not have: one of them may be another spelling of an old one."""
    for name in clients[len(about.extra["clients"]) :]:
        intake.note("new client", name)
    for name in labels[len(about.class_names) :]:
        intake.note("new label", name)


def _part(batch: Batch, y: np.ndarray | None, owner: np.ndarray, chosen: np.ndarray) -> Part:
    """Return the samples of a batch that are chosen, bool (n,)."""
    rows = np.flatnonzero(chosen)
    return Part(ArrayRows(batch.x, rows), None if y is None else y[rows], owner[rows], [batch.file[k] for k in rows])


def versions_of(about: Manifest) -> list[dict[str, Any]]:
    """Return the versions of a set up to the present one, for its manifest after an addition."""
    return [*about.extra.get(VERSIONS, []), {"digest": about.digest, "train": about.train, "test": about.test}]


def _after(onto: PreparedSet, part: str, new: Part) -> Part:
    """Return a part of a set with new samples after its own."""
    x = getattr(onto, f"{part}_x")
    if x is None:
        return new
    y = getattr(onto, f"{part}_y")
    files = sample_files(onto)
    assert files is not None, "a set of the user's own has them"
    return Part(
        ConcatenatedArray(x, new.x),
        None if y is None or new.y is None else ConcatenatedArray(y, new.y),
        np.concatenate([onto.owners(part), new.owner]),
        [*files.loc[files["part"] == part, "file"], *new.files],
    )


def _test_rows(
    batch: Batch, owner: np.ndarray, clients: int, test: float, seed: int, onto: PreparedSet | None
) -> np.ndarray:
    """Return which samples are held out, bool (n,); copies of one image lie on one side."""
    copies = Copies(np.arange(len(owner)), {})
    if batch.kind == "image":
        copies = find_copies(batch.x, onto)
    trained = np.zeros(clients, dtype=np.int64)
    before = 0
    if onto is not None:
        trained = np.bincount(onto.column("client"), minlength=clients)
        before = onto.manifest.train + onto.manifest.test
    in_test = draw_test_part(copies, owner, test, seed, trained, before)
    split = bool(in_test.any()) or bool(onto and onto.manifest.test)
    note_copies(batch.intake, copies, in_test, batch.file, split=split)
    return in_test


def _check_fit(batch: Batch, onto: PreparedSet | None, test: float) -> None:
    if not 0 <= test < 1:
        raise DataError(f"test is {test}, expected at least 0 and below 1")
    if onto is None:
        return
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


def known_files(onto: PreparedSet) -> dict[str, tuple[str, int]]:
    """Return the part and index of each file of a set of the user's own."""
    table = sample_files(onto)
    assert table is not None, "a set of the user's own has them"
    return {row.file: (row.part, row.index) for row in table.itertuples(index=False)}


def number_labels(labels: list[str], known: tuple[str, ...] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each label's number, int64, and the names of all labels.

    Known names keep their numbers; new ones follow in order, whole numbers in numerical order.
    """
    names = (*known, *in_order(set(labels) - set(known)))
    return pd.Index(names).get_indexer(labels).astype(np.int64), names
