"""Data sets, manifests and partitions as tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from shoal.cli.console import out, say, shown_number
from shoal.core.errors import short_text
from shoal.data.intake.own_store import LISTS
from shoal.data.intake.table_coding import CODING
from shoal.data.intake.table_origin import ROLES, TABLES, known_tables
from shoal.data.intake.windows import WINDOWS, window_rule
from shoal.data.partition.summary import summary
from shoal.data.partition.table import Partition
from shoal.data.sets.built_in import SETS
from shoal.data.sets.by_client import ClientArray
from shoal.data.sets.prepare import is_built_in, own_sets, prepared_sets, resolve
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.remedy import EMBEDDED
from shoal.data.sets.repair import damaged_sets, repair_sets
from shoal.engine.settings import places
from shoal.engine.store.embedded import changed_images, embedded_from, is_stale
from shoal.review.results.summary import counted

MAX_LABELS = 20
MAX_CLIENTS = 60
MAX_FILES = 10
MAX_NAMES = 10
MAX_ENTRIES = 8
"""The largest numbers that a table shows."""


def print_sets() -> None:
    """Print the built-in sets and the user's own."""
    store = places.store()
    repaired = repaired_sets(store)
    prepared = {manifest.name: manifest for manifest in prepared_sets(store)}
    table = Table("name", "kind", "train", "test", "classes", "prepared", "what it is", title="Data sets")
    for data_set in SETS.values():
        table.add_row(*_row(data_set.name, data_set.kind, prepared.get(data_set.name), data_set.description))
        for name, manifest in prepared.items():
            if name != data_set.name and is_built_in(name) and resolve(name)[0] is data_set:
                table.add_row(*_row(name, manifest.kind, manifest, manifest.subset or "with options"))
    for manifest in own_sets(store):
        table.add_row(*_row(manifest.name, manifest.kind, manifest, f"your own: {manifest.source}"))
    out.print(table)
    say(f"store: {store}")
    for sentence in (*repaired, *(f"damaged: {name}: {wrong}" for name, wrong in damaged_sets(store))):
        say(sentence)


def repaired_sets(store: Path) -> list[str]:
    """Repair sets whose replacement was cut short, and return what was repaired, or why it could not be."""
    try:
        return repair_sets(store)
    except OSError as error:
        return [
            f"a replacement that was cut short could not be repaired: {store} cannot be written ({short_text(error)})"
        ]


def _row(name: str, kind: str, manifest: Any, description: str) -> list[str]:
    if manifest is None:
        return [name, kind, "", "", "", "no", description]
    subset = ""
    if manifest.subset and manifest.subset != description:
        subset = f" ({manifest.subset})"
    classes = shown_number(manifest.classes, "d")
    return [name, kind, f"{manifest.train:,}", f"{manifest.test:,}", classes, "yes", description + subset]


def print_manifest(prepared: Prepared) -> None:
    """Print what a set holds, its clients, and the user's files that were adapted or left out."""
    manifest = prepared.manifest
    table = Table("", "", title=manifest.name, show_header=False)
    rows = {
        "kind": manifest.kind,
        "shape": " x ".join(map(str, manifest.shape)),
        "train": f"{manifest.train:,}" + (f" ({manifest.subset})" if manifest.subset else ""),
        "test": f"{manifest.test:,}",
        "classes": _first_names(manifest.class_names) if manifest.class_names else str(manifest.classes or "no labels"),
        "source": manifest.source,
        "licence": manifest.licence,
        "sha256": manifest.digest,
        "folder": str(prepared.folder),
    }
    rows |= _extra_rows(prepared)
    for row in rows.items():
        table.add_row(*row)
    out.print(table)
    if "client" in prepared.columns() and len(manifest.extra.get("clients", ())):
        out.print(_clients_table(prepared))
    if is_stale(prepared):
        say(changed_images(prepared))
    for key in LISTS:
        if manifest.extra.get(key):
            say(_listed(key, manifest.extra[key], prepared.folder))


def _extra_rows(prepared: Prepared) -> dict[str, str]:
    """Return the further entries of a manifest in words."""
    rows: dict[str, str] = {}
    manifest = prepared.manifest
    for key, value in manifest.extra.items():
        if key in ("clients", "features"):
            rows[key] = _first_names(tuple(map(str, value)))
        elif key == EMBEDDED:
            rows |= _embedded_rows(prepared)
        elif key in (CODING, ROLES):
            rows |= _table_rows(key, value)
        elif key == WINDOWS:
            rows[key] = window_rule(manifest).words()
        elif key == TABLES:
            rows["made of"] = _first_names(tuple(known_tables(manifest.extra)))
        elif key not in ("files", *LISTS):
            rows[key.replace("_", " ")] = _value_words(value)
    return rows


def _embedded_rows(prepared: Prepared) -> dict[str, str]:
    origin = embedded_from(prepared.manifest)
    assert origin is not None
    return {
        "images": f"{origin.images}, sha256 {origin.digest}",
        "encoder": f"{origin.encoder.in_words()}; on {origin.device}",
        "weights": f"sha256 {origin.encoder.sha256}",
    }


def _table_rows(key: str, entry: Any) -> dict[str, str]:
    """Return rows about the columns of a table with a role, or about texts and missing values."""
    if key == ROLES:
        return {f"{role} column": column for role, column in entry.items() if column}
    rows = {"missing values": entry["missing"]}
    if entry["categories"]:
        rows["columns of text"] = "; ".join(
            f"{column}: {', '.join(values)}" for column, values in entry["categories"].items()
        )
    return rows


def _clients_table(prepared: Prepared) -> Table:
    names = [str(name) for name in prepared.manifest.extra["clients"]]
    columns = {"train": np.bincount(prepared.column("client"), minlength=len(names))}
    if prepared.manifest.test and isinstance(prepared.test_x, ClientArray):
        columns["test"] = np.bincount(prepared.test_x.division.owner, minlength=len(names))
    frame = pd.DataFrame({"client": names, **columns})
    title = f"{len(names)} clients" + f", the first {MAX_CLIENTS}" * (len(names) > MAX_CLIENTS)
    return _frame_table(frame.head(MAX_CLIENTS), {}, title)


def _listed(key: str, entries: list[list[str]], folder: Path) -> str:
    """Return what was done with files: how many in each way, then the names of the first."""
    counts = Counter(reason for _, reason in entries)
    kinds = "; ".join(f"{count} {reason}" for reason, count in counts.most_common(MAX_FILES))
    more = f"; and {len(counts) - MAX_FILES} other kinds" * (len(counts) > MAX_FILES)
    lines = [f"  {path}: {reason}" for path, reason in entries[:MAX_FILES]]
    lines += [f"  and {len(entries) - MAX_FILES} more, listed in {folder / 'manifest.json'}"] * (
        len(entries) > MAX_FILES
    )
    reasons = f" ({kinds}{more})" * (len(counts) < len(entries))
    return "\n".join([f"{key}: {counted(len(entries), 'image')}{reasons}", *lines])


def _value_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {each}" for key, each in value.items())
    if isinstance(value, list | tuple) and len(value) > MAX_ENTRIES:
        return f"{len(value):,} entries"
    if isinstance(value, list | tuple):
        return "; ".join(_value_words(each) for each in value) or "none"
    return str(value)


def _first_names(names: tuple[str, ...]) -> str:
    return f"{len(names)}: {', '.join(names[:MAX_NAMES])}" + ", ..." * (len(names) > MAX_NAMES)


def print_partition(partition: Partition, prepared: Prepared) -> None:
    """Print how many samples of each label each client holds."""
    frame = summary(partition, prepared)
    label_columns = [column for column in frame.columns if str(column).startswith("label_")]
    if len(label_columns) > MAX_LABELS:
        # Too wide for a terminal; the summary file has all labels.
        label_counts = (frame[label_columns] > 0).sum(axis=1)
        frame.insert(list(frame.columns).index(label_columns[0]), "labels held", label_counts)
        frame = frame.drop(columns=label_columns)
    names = prepared.manifest.class_names
    headings = {column: names[i] if i < len(names) else str(column) for i, column in enumerate(label_columns)}
    title = f"{partition.data}, {partition.settings.get('kind', '')}: {partition.clients} clients"
    out.print(_frame_table(frame.head(MAX_CLIENTS), headings, title))
    if len(frame) > MAX_CLIENTS:
        say(f"and {len(frame) - MAX_CLIENTS} more clients")
    left_out = partition.settings.get("left_out")
    if left_out:
        say(f"left out: {left_out['samples']:,} samples; {left_out['reason']}")
    say(f"digest: {partition.digest}")


def _frame_table(frame: pd.DataFrame, headings: dict[str, str], title: str) -> Table:
    table = Table(title=title)
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(headings.get(str(column), str(column)), justify="right" if numeric else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:,}" if isinstance(value, int | np.integer) else str(value) for value in row))
    return table
