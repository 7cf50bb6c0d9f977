"""The command line's part for data: list, prepare, partition, show, add."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from data.errors import DataError, PartitionError
from data.images import OnBad, OnOdd
from data.own import add_folder, add_table
from data.partition.schemes import SCHEMES, PartitionSettings, TransformName
from data.partition.store import ensure_partition, partition_folder, write_partition
from data.partition.summary import summary
from data.partition.table import Partition, load_partition
from data.prepare import is_built_in, own_sets, prepared_sets, resolve, store_folder
from data.prepared import Prepared, open_prepared
from data.sets import SETS
from flows import places
from flows.progress import prepare_shown
from tasks.contact_sheet import contact_sheet
from tasks.partition_figure import partition_figure
from tasks.represent import PREFIX

app = typer.Typer(no_args_is_help=True, help="Data sets and partitions.", rich_markup_mode="rich")

_LABEL_COLUMNS = 20
_CLIENT_ROWS = 60


@app.command("list", epilog="Example: shoal data list")
def list_sets() -> None:
    """List the built-in data sets and your own, and which of them are prepared."""
    store = places.store()
    prepared = {m.name: m for m in prepared_sets(store)}
    table = Table("name", "kind", "train", "test", "classes", "prepared", "what it is", title="Data sets")
    for data_set in SETS.values():
        table.add_row(*_row(data_set.name, data_set.kind, prepared.get(data_set.name), data_set.description))
        for name, manifest in prepared.items():
            if name != data_set.name and is_built_in(name) and resolve(name)[0] is data_set:
                table.add_row(*_row(name, manifest.kind, manifest, manifest.subset or "with options"))
    for manifest in own_sets(store):
        made = manifest.source if manifest.name.startswith(PREFIX) else f"your own: {manifest.source}"
        table.add_row(*_row(manifest.name, manifest.kind, manifest, made))
    table.add_row(
        f"{PREFIX}NAME", "vector", "", "", "", "", "what a RotNet trained on image set NAME sees in its images"
    )
    console = _console()
    console.print(table)
    console.print(f"store: {store}", soft_wrap=True, highlight=False)


def _row(name: str, kind: str, manifest: Any, description: str) -> list[str]:
    if manifest is None:
        return [name, kind, "", "", "", "no", description]
    subset = f" ({manifest.subset})" if manifest.subset and manifest.subset != description else ""
    classes = "" if manifest.classes is None else str(manifest.classes)
    return [name, kind, f"{manifest.train:,}", f"{manifest.test:,}", classes, "yes", description + subset]


@app.command("prepare", epilog="Example: shoal data prepare gaussian --option clusters=10 --option seed=3")
def prepare_command(
    name: Annotated[str, typer.Argument(help="a built-in data set; `shoal data list` shows them")],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="an option of the set, NAME=NUMBER; repeat for more")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="prepare again even if it is there")] = False,
) -> None:
    """Verify the raw files of a data set and write its arrays to the store.

    Raw files come from the folder that SHOAL_DATA_MIRROR names, else they are downloaded.
    """
    prepared = prepare_shown(name, force=force, options=_options(option or []))
    _print_manifest(prepared)


def _options(given: list[str]) -> dict[str, int]:
    options = {}
    for text in given:
        key, equals, value = text.partition("=")
        try:
            options[key.strip()] = int(value)
        except ValueError:
            raise DataError(f"--option {text!r}: expected NAME=NUMBER, such as clusters=10") from None
        if not equals:
            raise DataError(f"--option {text!r}: expected NAME=NUMBER, such as clusters=10")
    return options


@app.command("partition", epilog="Example: shoal data partition mnist --kind dirichlet --beta 0.1 --clients 10")
def partition_set(
    name: Annotated[str, typer.Argument(help="a data set, built in or your own; it is prepared if need be")],
    kind: Annotated[str, typer.Option(help=f"the scheme: {', '.join(SCHEMES)}")] = "iid",
    clients: Annotated[
        int | None, typer.Option(help="number of clients (default: 5; by_column: all of the column)")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="dirichlet: concentration, above 0 (default: 0.5)")] = None,
    minimum: Annotated[
        int | None, typer.Option(help="dirichlet: samples each client gets at least (default: 10)")
    ] = None,
    labels: Annotated[int | None, typer.Option(help="labels_per_client: labels of each client (default: 2)")] = None,
    p: Annotated[
        float | None, typer.Option(help="majority: part from the client's own cluster, 0 to 1 (default: 0.5)")
    ] = None,
    column: Annotated[str | None, typer.Option(help="by_column: whose a sample is (default: client)")] = None,
    limit: Annotated[int | None, typer.Option(help="keep a random subset of at most so many training samples")] = None,
    seed: Annotated[int, typer.Option(help="seed of every draw")] = 0,
    validation: Annotated[float, typer.Option(help="part of each client's samples held out, below 1")] = 0.0,
    stratified: Annotated[
        bool, typer.Option("--stratified", help="hold out the same part of every label of a client")
    ] = False,
    transform: Annotated[TransformName, typer.Option(help="transformation planted on groups")] = "none",
    groups: Annotated[int, typer.Option(help="number of planted groups")] = 2,
    per_sample: Annotated[bool, typer.Option("--per-sample", help="plant groups on samples, not on clients")] = False,
    out: Annotated[Path | None, typer.Option(help="folder to write to (default: a folder in the store)")] = None,
) -> None:
    """Give the training samples of a data set to clients.

    Writes the table (Parquet), summary.csv and labels.png, a heat map of labels by clients.
    """
    store = places.store()
    settings = _settings(
        kind,
        {"clients": clients, "beta": beta, "minimum": minimum, "labels": labels, "p": p, "column": column},
        {
            "validation": validation,
            "stratified": stratified,
            "transform": transform,
            "groups": groups,
            "per_sample": per_sample,
        },
    )
    prepared = prepare_shown(name)
    partition = ensure_partition(store, prepared, settings, limit=limit, seed=seed)
    folder = partition_folder(store, prepared, settings, limit, seed)
    if out is not None:
        if out.exists() and any(out.iterdir()) and not (out / "partition.json").exists():
            raise PartitionError(f"{out} holds other files: give --out a new folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_partition(partition, prepared, out.resolve())
        folder = out
    figure = partition_figure(partition, prepared, folder / "labels.png")
    _print_partition(partition, prepared)
    _console().print(f"table:  {folder / 'partition.parquet'}\nfigure: {figure}", soft_wrap=True, highlight=False)


def _settings(kind: str, given: dict[str, Any], common: dict[str, Any]) -> PartitionSettings:
    """The settings of a scheme; options of other schemes are refused instead of ignored."""
    scheme = SCHEMES.get(kind)
    if scheme is None:
        raise PartitionError(f"there is no scheme {kind!r}; the schemes: {', '.join(SCHEMES)}")
    known = {each.name for each in fields(scheme)}
    chosen = {option: value for option, value in given.items() if value is not None}
    for option in chosen:
        if option not in known:
            of = ", ".join(other.kind for other in SCHEMES.values() if option in {f.name for f in fields(other)})
            raise PartitionError(f"--{option} belongs to {of}, not to {kind}: drop it, or choose another --kind")
    return scheme(**chosen, **common)


@app.command("show", epilog="Example: shoal data show mnist --images sheet.png")
def show(
    what: Annotated[str, typer.Argument(help="a prepared data set, or the folder of a partition")],
    images: Annotated[Path | None, typer.Option(help="for images: write a contact sheet to this PNG")] = None,
) -> None:
    """Show what a prepared data set or a partition holds."""
    store = places.store()
    partition: Partition | None = None
    folder = next((f for f in (Path(what), store / "partitions" / what) if (f / "partition.json").exists()), None)
    if folder is not None:
        partition = load_partition(folder)
        prepared = open_prepared(store_folder(store, partition.data))
        if prepared.manifest.digest != partition.data_digest:
            raise PartitionError(f"{folder} divides another version of {partition.data!r}: make the partition again")
        _print_partition(partition, prepared)
    else:
        full_name = resolve(what)[2] if is_built_in(what) else what
        if not (store_folder(store, full_name) / "manifest.json").exists():
            have = ", ".join(m.name for m in prepared_sets(store)) or "none"
            raise DataError(
                f"{what!r} is neither a prepared data set nor the folder of a partition; prepared: {have}"
                + (f". Run `shoal data prepare {full_name}`" if is_built_in(what) else "")
            )
        prepared = open_prepared(store_folder(store, full_name))
        _print_manifest(prepared)
    if images is not None:
        _console().print(
            f"images: {contact_sheet(prepared, images, partition=partition)}", soft_wrap=True, highlight=False
        )


@app.command("add", epilog="Example: shoal data add photos/ --name clinics --on-odd resize --labels labels.csv")
def add(
    path: Annotated[
        Path, typer.Argument(help="a folder with one sub-folder of images per client, or a Parquet or CSV table")
    ],
    name: Annotated[str, typer.Option(help="what the data set is called")],
    size: Annotated[str | None, typer.Option(help="images: HEIGHTxWIDTH (default: the most common size)")] = None,
    on_bad: Annotated[OnBad, typer.Option(help="images that cannot be read")] = "refuse",
    on_odd: Annotated[OnOdd, typer.Option(help="images of another size")] = "refuse",
    labels: Annotated[Path | None, typer.Option(help="images: CSV with the columns file and label")] = None,
    client_column: Annotated[str, typer.Option(help="table: says whose a row is")] = "client",
    label_column: Annotated[str | None, typer.Option(help="table: the label of a row (default: no labels)")] = None,
    test: Annotated[float, typer.Option(help="part of each client's samples that becomes the test part")] = 0.0,
    seed: Annotated[int, typer.Option(help="seed of the choice of the test part")] = 0,
    licence: Annotated[str, typer.Option(help="kept with the set")] = "not stated",
    force: Annotated[bool, typer.Option("--force", help="replace a data set of this name")] = False,
) -> None:
    """Add your own data: images in one sub-folder per client, or a table with a client column."""
    store = places.store()
    if path.is_dir():
        prepared = add_folder(
            path,
            name,
            store,
            size=_size(size),
            on_bad=on_bad,
            on_odd=on_odd,
            labels=labels,
            test=test,
            seed=seed,
            licence=licence,
            force=force,
        )
    else:
        prepared = add_table(
            path,
            name,
            store,
            client_column=client_column,
            label_column=label_column,
            test=test,
            seed=seed,
            licence=licence,
            force=force,
        )
    _print_manifest(prepared)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not height.isdigit() or not width.isdigit():
        raise DataError(f"--size {text!r}: expected HEIGHTxWIDTH, such as 32x32")
    return int(height), int(width)


def _print_manifest(prepared: Prepared) -> None:
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
        if key == "files":
            continue
        short = isinstance(value, list | tuple) and len(value) > 8
        rows[key] = f"{len(value):,} entries" if short else _words(value)
    for key, value in rows.items():
        table.add_row(key, value)
    _console().print(table)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_words(each) for each in value) or "none"
    return str(value)


def _some(names: tuple[str, ...]) -> str:
    return f"{len(names)}: " + ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _print_partition(partition: Partition, prepared: Prepared) -> None:
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
