"""Data sets, manifests and partitions as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from shoal.cli.console import frame_table, out, say, table_of
from shoal.core.errors import escaped, first_of
from shoal.data.intake.client_table import known_tables
from shoal.data.intake.windows import WINDOWS, window_rule
from shoal.data.partition.summary import summary
from shoal.data.partition.table import Partition
from shoal.data.sets.built_in import SETS
from shoal.data.sets.by_client import is_by_client
from shoal.data.sets.intake_notes import Intake, left_out_before, names_file
from shoal.data.sets.prepare import damaged_sets, is_built_in, prepared_sets, resolve
from shoal.data.sets.prepared import PreparedSet
from shoal.engine.settings import places
from shoal.engine.store.embedded import changed_images, is_stale

MAX_LABELS = 20
MAX_CLIENTS = 60
"""The largest numbers that a table shows."""


def print_sets() -> None:
    """Print the built-in sets and the user's own."""
    store = places.store()
    prepared = prepared_sets(store)
    names = {manifest.name for manifest in prepared}
    rows: list[list[object]] = []
    for data_set in SETS.values():
        if data_set.name not in names:
            rows.append([data_set.name, data_set.kind, None, None, None, "no", data_set.description])
    for manifest in prepared:
        about = f"your own: {manifest.source}"
        if is_built_in(manifest.name):
            about = manifest.subset or resolve(manifest.name)[0].description
        rows.append([manifest.name, manifest.kind, manifest.train, manifest.test, manifest.classes, "yes", about])
    headings = ("name", "kind", "train", "test", "classes", "prepared", "what it is")
    out.print(table_of(headings, rows, "Data sets"))
    say(f"store: {store}")
    for name, wrong in damaged_sets(store):
        say(f"damaged: {name}: {wrong}")


def print_manifest(prepared: PreparedSet) -> None:
    """Print what a set holds, its clients, and the user's files that were left out."""
    manifest = prepared.manifest
    extra = manifest.extra
    rows = {
        "kind": manifest.kind,
        "shape": " x ".join(map(str, manifest.shape)),
        "train": f"{manifest.train:,}",
        "test": f"{manifest.test:,}",
        "subset": manifest.subset,
        "classes": counted_names(manifest.class_names) or str(manifest.classes or "no labels"),
        "source": manifest.source,
        "licence": manifest.licence,
        "features": counted_names(extra.get("features", ())),
        "windows": window_rule(manifest).words() if WINDOWS in extra else "",
        "tables": counted_names(list(known_tables(extra))),
        "sha256": manifest.digest,
        "folder": str(prepared.folder),
    }
    out.print(table_of(("entry", "value"), [row for row in rows.items() if row[1]], Text(manifest.name)))
    if is_by_client(manifest.files):
        names = extra["clients"]
        counts = [np.bincount(prepared.owners(part), minlength=len(names)) for part in ("train", "test")]
        title = f"{len(names)} clients" + f", the first {MAX_CLIENTS}" * (len(names) > MAX_CLIENTS)
        clients = list(zip(names, *counts, strict=True))[:MAX_CLIENTS]
        out.print(table_of(("client", "train", "test"), clients, title))
    if is_stale(prepared):
        say(changed_images(prepared))
    if names := sorted(map(escaped, left_out_before(prepared.folder))):
        say(f"left out: {first_of(names)}; reasons: {names_file(prepared.folder)}")


def counted_names(names: Sequence[str]) -> str:
    """Return how many names there are, and the first; empty without any."""
    return f"{len(names)}: {first_of(names)}" if names else ""


def print_intake(console: Console, intake: Intake, names: Path | None = None) -> None:
    """Print what was seen, taken, adapted and left out.

    Args:
        console: where to print.
        intake: the notes of one addition or prediction.
        names: the file that holds all names; None where there is none.
    """
    rows = []
    for row in intake.rows():
        such_as = ", ".join(row.names)
        if len(row.names) < row.count and row.names:
            such_as += ", ..."
        rows.append((row.what, row.count, such_as))
    console.print(table_of(("", "number", "such as"), rows, "Intake"))
    if names is not None and (intake.adapted or intake.left_out):
        console.print(f"all names: {names}", soft_wrap=True, highlight=False, markup=False)


def print_partition(partition: Partition, prepared: PreparedSet) -> None:
    """Print how many samples of each label each client holds."""
    frame = summary(partition, prepared)
    labels = [column for column in frame.columns if str(column).startswith("label_")]
    if len(labels) > MAX_LABELS:  # too wide for a terminal; the summary file has all labels
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
