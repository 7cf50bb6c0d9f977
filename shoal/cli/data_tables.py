"""Data sets, manifests and partitions as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from shoal.cli.console import frame_table, out, say, table_of
from shoal.data.intake.table_origin import TABLES, known_tables
from shoal.data.intake.windows import WINDOWS, window_rule
from shoal.data.partition.summary import summary
from shoal.data.partition.table import Partition
from shoal.data.sets.built_in import SETS
from shoal.data.sets.by_client import ClientArray
from shoal.data.sets.intake_notes import left_out_before, names_file, printable
from shoal.data.sets.prepare import damaged_sets, is_built_in, own_sets, prepared_sets, resolve
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.wording import first_of
from shoal.engine.settings import places
from shoal.engine.store.embedded import changed_images, is_stale

MAX_LABELS = 20
MAX_CLIENTS = 60
MAX_NAMES = 10
"""The largest numbers that a table shows."""


def print_sets() -> None:
    """Print the built-in sets and the user's own."""
    store = places.store()
    prepared = {manifest.name: manifest for manifest in prepared_sets(store)}
    rows = []
    for data_set in SETS.values():
        rows.append(_row(data_set.name, data_set.kind, prepared.get(data_set.name), data_set.description))
        for name, manifest in prepared.items():
            if name != data_set.name and is_built_in(name) and resolve(name)[0] is data_set:
                rows.append(_row(name, manifest.kind, manifest, manifest.subset or "with options"))
    for manifest in own_sets(store):
        rows.append(_row(manifest.name, manifest.kind, manifest, f"your own: {manifest.source}"))
    headings = ("name", "kind", "train", "test", "classes", "prepared", "what it is")
    out.print(table_of(headings, rows, "Data sets"))
    say(f"store: {store}")
    for name, wrong in damaged_sets(store):
        say(f"damaged: {name}: {wrong}")


def _row(name: str, kind: str, manifest: Any, description: str) -> list[object]:
    if manifest is None:
        return [name, kind, None, None, None, "no", description]
    subset = ""
    if manifest.subset and manifest.subset != description:
        subset = f" ({manifest.subset})"
    return [name, kind, manifest.train, manifest.test, manifest.classes, "yes", description + subset]


def print_manifest(prepared: Prepared) -> None:
    """Print what a set holds, its clients, and the user's files that were adapted or left out."""
    manifest = prepared.manifest
    labels = _words(manifest.class_names) if manifest.class_names else manifest.classes or "no labels"
    rows = {
        "kind": manifest.kind,
        "shape": " x ".join(map(str, manifest.shape)),
        "train": f"{manifest.train:,}",
        "test": f"{manifest.test:,}",
        "subset": manifest.subset,
        "classes": str(labels),
        "source": manifest.source,
        "licence": manifest.licence,
        "sha256": manifest.digest,
        "folder": str(prepared.folder),
        **_extra_rows(prepared),
    }
    out.print(table_of(("entry", "value"), [row for row in rows.items() if row[1]], Text(manifest.name)))
    if "client" in prepared.columns() and len(manifest.extra.get("clients", ())):
        out.print(_clients_table(prepared))
    if is_stale(prepared):
        say(changed_images(prepared))
    if names := sorted(map(printable, left_out_before(prepared.folder))):
        say(f"left out: {first_of(names, MAX_NAMES)}; reasons: {names_file(prepared.folder)}")


def _extra_rows(prepared: Prepared) -> dict[str, str]:
    """Return the further entries of a manifest in words."""
    manifest = prepared.manifest
    entries = {key: value for key, value in manifest.extra.items() if key != "files"}
    if WINDOWS in entries:
        entries[WINDOWS] = window_rule(manifest).words()
    if TABLES in entries:
        entries[TABLES] = list(known_tables(manifest.extra))
    return {key.replace("_", " "): _words(value) for key, value in entries.items() if value}


def _words(value: Any) -> str:
    """Return an entry of a manifest in words: of many values how many, and the first."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(entry)}" for key, entry in value.items() if entry)
    if isinstance(value, list | tuple):
        return f"{len(value)}: {', '.join(map(_words, value[:MAX_NAMES]))}" + ", ..." * (len(value) > MAX_NAMES)
    return str(value)


def _clients_table(prepared: Prepared) -> Table:
    names = [str(name) for name in prepared.manifest.extra["clients"]]
    columns = {"train": np.bincount(prepared.column("client"), minlength=len(names))}
    if prepared.manifest.test and isinstance(prepared.test_x, ClientArray):
        columns["test"] = np.bincount(prepared.test_x.division.owner, minlength=len(names))
    rows = list(zip(names, *columns.values(), strict=True))
    title = f"{len(names)} clients" + f", the first {MAX_CLIENTS}" * (len(names) > MAX_CLIENTS)
    return table_of(("client", *columns), rows[:MAX_CLIENTS], title)


def print_partition(partition: Partition, prepared: Prepared) -> None:
    """Print how many samples of each label each client holds."""
    frame = summary(partition, prepared)
    labels = [column for column in frame.columns if str(column).startswith("label_")]
    if len(labels) > MAX_LABELS:  # too wide for a terminal; the summary file has all labels
        frame.insert(frame.columns.get_loc(labels[0]), "labels held", (frame[labels] > 0).sum(axis=1))
        frame = frame.drop(columns=labels)
    shown = frame.head(MAX_CLIENTS).rename(columns=dict(zip(labels, prepared.manifest.class_names, strict=False)))
    title = f"{partition.data}, {partition.settings.get('kind', '')}: {partition.clients} clients"
    out.print(frame_table(shown, Text(title)))
    if len(frame) > MAX_CLIENTS:
        say(f"and {len(frame) - MAX_CLIENTS} more clients")
    left_out = partition.settings.get("left_out")
    if left_out:
        say(f"left out: {left_out['samples']:,} samples; {left_out['reason']}")
    say(f"digest: {partition.digest}")
