"""What the data commands print: sets, manifests and partitions as tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from shoal.core.errors import brief
from shoal.data.own_store import LISTS
from shoal.data.partition.summary import summary
from shoal.data.partition.table import Partition
from shoal.data.prepare import is_built_in, own_sets, prepared_sets, resolve
from shoal.data.prepared import Prepared
from shoal.data.repair import damaged_sets, repair_sets
from shoal.data.sample_files import DIGEST, sample_files
from shoal.data.sets import SETS
from shoal.engine.settings import places
from shoal.engine.store.represent import PREFIX

_LABEL_COLUMNS = 20
_CLIENT_ROWS = 60
_LISTED = 10


def say(text: str) -> None:
    """A line on standard output, unbroken."""
    _console().print(text, soft_wrap=True, highlight=False, markup=False)


def print_sets() -> None:
    """The built-in sets and the user's own."""
    store = places.store()
    repaired = repaired_sets(store)
    prepared = {m.name: m for m in prepared_sets(store)}
    table = Table("name", "kind", "train", "test", "classes", "prepared", "what it is", title="Data sets")
    for data_set in SETS.values():
        table.add_row(*_row(data_set.name, data_set.kind, prepared.get(data_set.name), data_set.description))
        for name, manifest in prepared.items():
            if name != data_set.name and is_built_in(name) and resolve(name)[0] is data_set:
                table.add_row(*_row(name, manifest.kind, manifest, manifest.subset or "with options"))
    for manifest in own_sets(store):
        if manifest.name.startswith(PREFIX):
            made = manifest.source
        else:
            made = f"your own: {manifest.source}"
        table.add_row(*_row(manifest.name, manifest.kind, manifest, made))
    table.add_row(
        f"{PREFIX}NAME", "vector", "", "", "", "", "what a RotNet trained on image set NAME sees in its images"
    )
    console = _console()
    console.print(table)
    console.print(f"store: {store}", soft_wrap=True, highlight=False)
    for sentence in (*repaired, *(f"damaged: {name}: {wrong}" for name, wrong in damaged_sets(store))):
        say(sentence)


def repaired_sets(store: Path) -> list[str]:
    """What `shoal.data.repair` did, as sentences; that it could not where the store cannot be written."""
    try:
        return repair_sets(store)
    except OSError as error:
        return [f"a replacement that was cut short is not put right: {store} cannot be written ({brief(error)})"]


def _row(name: str, kind: str, manifest: Any, description: str) -> list[str]:
    if manifest is None:
        return [name, kind, "", "", "", "no", description]
    subset = ""
    if manifest.subset and manifest.subset != description:
        subset = f" ({manifest.subset})"
    classes = ""
    if manifest.classes is not None:
        classes = str(manifest.classes)
    return [name, kind, f"{manifest.train:,}", f"{manifest.test:,}", classes, "yes", description + subset]


def print_manifest(prepared: Prepared) -> None:
    """What a set holds, its clients, and the files of the user that were not taken as they are."""
    m = prepared.manifest
    table = Table("", "", title=m.name, show_header=False)
    rows = {
        "kind": m.kind,
        "shape": " x ".join(map(str, m.shape)),
        "train": f"{m.train:,}" + (f" ({m.subset})" if m.subset else ""),
        "test": f"{m.test:,}",
        "classes": _some(m.class_names) if m.class_names else str(m.classes or "no labels"),
        "source": m.source,
        "licence": m.licence,
        "sha256": m.digest,
        "folder": str(prepared.folder),
    }
    for key, value in m.extra.items():
        if key in ("files", DIGEST, *LISTS):
            continue
        if key in ("clients", "features"):
            rows[key] = _some(tuple(map(str, value)))
            continue
        short = isinstance(value, list | tuple) and len(value) > 8
        rows[key] = f"{len(value):,} entries" if short else _words(value)
    for key, value in rows.items():
        table.add_row(key, value)
    console = _console()
    console.print(table)
    if "client" in prepared.columns() and len(m.extra.get("clients", ())):
        console.print(_clients_table(prepared))
    for key in LISTS:
        if m.extra.get(key):
            say(_listed(key, m.extra[key]))


def _clients_table(prepared: Prepared) -> Table:
    names = [str(name) for name in prepared.manifest.extra["clients"]]
    columns = {"train": np.bincount(prepared.column("client"), minlength=len(names))}
    files = sample_files(prepared)
    if prepared.manifest.test and files is not None:
        held = files.loc[files["part"] == "test", "client"].value_counts()
        columns["test"] = np.array([held.get(name, 0) for name in names])
    frame = pd.DataFrame({"client": names, **columns})
    title = f"{len(names)} clients" + (f", the first {_CLIENT_ROWS}" if len(names) > _CLIENT_ROWS else "")
    return _frame_table(frame.head(_CLIENT_ROWS), {}, title)


def _listed(key: str, entries: list[list[str]]) -> str:
    """What became of single files: how many of each kind, then the first of them by name."""
    counts = Counter(reason for _, reason in entries)
    kinds = "; ".join(f"{count} {reason}" for reason, count in counts.most_common(_LISTED))
    more = ""
    if len(counts) > _LISTED:
        more = f"; and {len(counts) - _LISTED} other reasons"
    lines = [f"  {path}: {reason}" for path, reason in entries[:_LISTED]]
    lines += [f"  and {len(entries) - _LISTED} more, listed in manifest.json"] * (len(entries) > _LISTED)
    summed = ""
    if len(counts) < len(entries):
        summed = f" ({kinds}{more})"
    return "\n".join([f"{key}: {len(entries)} {'image' if len(entries) == 1 else 'images'}{summed}", *lines])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_words(each) for each in value) or "none"
    return str(value)


def _some(names: tuple[str, ...]) -> str:
    return f"{len(names)}: " + ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def print_partition(partition: Partition, prepared: Prepared) -> None:
    """Who holds how much of what."""
    frame = summary(partition, prepared)
    label_columns = [column for column in frame.columns if str(column).startswith("label_")]
    if len(label_columns) > _LABEL_COLUMNS:
        # Too wide for a terminal; the summary file has them all.
        held = (frame[label_columns] > 0).sum(axis=1)
        frame.insert(list(frame.columns).index(label_columns[0]), "labels held", held)
        frame = frame.drop(columns=label_columns)
    names = prepared.manifest.class_names
    headings = {column: names[i] if i < len(names) else str(column) for i, column in enumerate(label_columns)}
    title = f"{partition.data}, {partition.settings.get('kind', '')}: {partition.clients} clients"
    console = _console()
    console.print(_frame_table(frame.head(_CLIENT_ROWS), headings, title))
    if len(frame) > _CLIENT_ROWS:
        console.print(f"and {len(frame) - _CLIENT_ROWS} more clients")
    left_out = partition.settings.get("left_out")
    if left_out:
        console.print(f"left out: {left_out['samples']:,} samples; {left_out['reason']}", highlight=False)
    console.print(f"digest: {partition.digest}", soft_wrap=True, highlight=False)


def _frame_table(frame: pd.DataFrame, headings: dict[str, str], title: str) -> Table:
    table = Table(title=title)
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(headings.get(str(column), str(column)), justify="right" if numeric else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{value:,}" if isinstance(value, int | np.integer) else str(value) for value in row))
    return table


def _console() -> Console:
    # Made when needed, so that it writes to the stdout of that moment.
    return Console()
