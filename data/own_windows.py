"""A user's table of time series as a batch of windows: client, label and channels of each window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.core.records import record_to_json
from shoal.data.columns import category_values, feature_columns
from shoal.data.intake import Intake
from shoal.data.names import client_numbers, names_of
from shoal.data.own_images import NothingNew
from shoal.data.own_store import Batch, known_files
from shoal.data.possible_labels import possible_labels
from shoal.data.prepared import Prepared
from shoal.data.table_coding import COLUMNS, MEASUREMENTS, missing_rows
from shoal.data.table_options import TableOptions
from shoal.data.table_origin import table_origin
from shoal.data.tables import find_column, numbers_of, read_table
from shoal.data.windows import (
    LONGER,
    MIXED,
    SHORTER,
    WINDOWS,
    Series,
    WindowRule,
    Windows,
    cut,
    make_rule,
    split_series,
    times_of,
    window_rule,
)
from shoal.data.wording import first_of


def rule_of(prepared: Prepared) -> WindowRule:
    """Return how the windows of a set were cut.

    Raises:
        DataError: the set does not hold windows.
    """
    if WINDOWS not in prepared.manifest.extra:
        raise DataError(f"{prepared.manifest.name!r} holds {prepared.manifest.kind}s and no windows")
    return window_rule(prepared.manifest)


def read_windows(path: Path, onto: Prepared | None, options: TableOptions, intake: Intake | None = None) -> Batch:
    """Return the windows of a table as they would be stored; nothing is written.

    Args:
        path: the table.
        onto: the set to append to, whose windows are cut as before; windows that it has are left out.
        options: of the user; `windows` of a new set.
        intake: notes of what is taken, adapted and left out.

    Raises:
        DataError: see `shoal.data.own.add_table` and `shoal.data.windows`.
    """
    notes = intake or Intake()
    label_column = options.label_column
    rule = None if onto is None else rule_of(onto)
    if rule is not None and options.windows.given:
        raise DataError("the set knows how its windows are cut: leave --window out with --append")
    columns = _columns(options) if rule is None else (rule.client, rule.time, rule.series)
    text = [column for column in (columns[0], columns[2], label_column or "") if column]
    table = read_table(path, text, notes)
    table, columns = _found(table, columns, path)
    known = [] if onto is None else list(onto.manifest.extra["clients"])
    client, names = client_numbers(table[columns[0]], path, known, notes)
    keys = _keys(table, columns, np.array(names)[client], path, notes)
    label: np.ndarray | None = None
    if label_column:
        label_column = find_column(table, label_column, path, "--label-column")
        classes = () if onto is None else onto.manifest.class_names
        label = names_of(table[label_column], path, "label", classes, notes)
    times, dated = times_of(table[columns[1]], columns[1])
    series = split_series(keys, times)
    table = table.drop(columns=[name for name in (*columns, label_column) if name])
    if rule is None:
        channels = _channels(table, path, options.features, notes)
        rule = make_rule(options.windows, series, columns, channels, dated=dated)
    _check_times(rule, dated, path)
    advice = SHORTER
    if onto is not None:
        advice = LONGER
    found = cut(*_values(table, rule, path, notes), series, rule, notes, advice)
    kept = _kept(found, series, label, onto, notes)
    first = [found.rows[k][0] for k in kept]
    owner = [names[client[row]] for row in first]
    clients = [name for name in names if name in set(owner)]
    for name in names:
        if name not in set(owner):
            notes.leave_out("client without a new complete window", name)
    notes.take("windows", len(owner))
    return Batch(
        "series",
        found.x[kept],
        None if label is None else [str(label[row]) for row in first],
        owner,
        clients,
        [window_name(found, series, k) for k in kept],
        source=f"series of table {path.name}, {len(owner)} windows of {len(clients)} clients",
        licence=options.licence,
        extra=table_origin(path, onto, columns[0], label_column) | _extra(rule, onto, table, options, notes),
        intake=notes,
    )


def _extra(
    rule: WindowRule, onto: Prepared | None, table: pd.DataFrame, options: TableOptions, intake: Intake
) -> dict[str, Any]:
    """Return the further entries of the manifest of a new set; none for one that is appended to."""
    if onto is not None:
        return {}
    extra: dict[str, Any] = {"features": list(rule.channels), WINDOWS: record_to_json(rule)}
    if len(rule.channels) > 1:
        extra[COLUMNS] = MEASUREMENTS
    return extra | possible_labels(table, rule.channels, options, intake)


def new_windows(table: pd.DataFrame, rule: WindowRule, path: Path, intake: Intake) -> tuple[np.ndarray, list[str]]:
    """Return the windows of a table for a model of a set of windows, (n, channels, length), and their names.

    Args:
        table: of new samples; the column of clients may be missing where there is one of series.
        rule: of the set.
        path: the file, for errors.
        intake: notes of what is left out.

    Raises:
        DataError: a column is missing, times of another kind, irregular series, or no complete window.
    """
    needed = (rule.time, rule.series or rule.client, *rule.channels)
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise DataError(f"{path} lacks columns of the set's windows: {first_of([shown(name) for name in lacking])}")
    parts = [name for name in (rule.client, rule.series) if name in table.columns]
    keys = ["/".join(names) for names in zip(*(names_of(table[name], path, "series") for name in parts), strict=True)]
    times, dated = times_of(table[rule.time], rule.time)
    _check_times(rule, dated, path)
    series = split_series(keys, times)
    found = cut(*_values(table, rule, path, intake), series, rule, intake)
    intake.take("windows", len(found.x))
    return found.x, [window_name(found, series, k) for k in range(len(found.x))]


def window_name(found: Windows, series: Series, number: int) -> str:
    """Return the name of a window: its series and the time at which it begins."""
    return f"{series.name[found.series[number]]}@{found.begin[number]}"


def _columns(options: TableOptions) -> tuple[str, str, str]:
    return options.client_column, options.windows.time_column, options.windows.series_column or ""


def _found(table: pd.DataFrame, columns: tuple[str, str, str], path: Path) -> tuple[pd.DataFrame, tuple[str, str, str]]:
    """Return the table and the names of its columns of clients, times and series as the table spells them."""
    client, time, series = columns
    client = find_column(table, client, path, "--client-column")
    time = find_column(table, time, path, "--time-column")
    if series:
        series = find_column(table, series, path, "--series-column")
    return table, (client, time, series)


def _keys(
    table: pd.DataFrame, columns: tuple[str, str, str], client: np.ndarray, path: Path, intake: Intake
) -> list[str]:
    """Return the series of each row as CLIENT/SERIES, or CLIENT where each client has one series."""
    if not columns[2] or columns[2] == columns[0]:
        return [str(name) for name in client]
    series = names_of(table[columns[2]], path, "series", (), intake)
    return [f"{owner}/{name}" for owner, name in zip(client, series, strict=True)]


def _channels(table: pd.DataFrame, path: Path, named: Sequence[str] | None, intake: Intake) -> tuple[str, ...]:
    """Return the columns that are measured; texts are left out."""
    for column in map(str, table.columns):
        if named is None and category_values(table[column]) is not None:
            intake.see("columns")
            intake.leave_out("column of text, which windows do not hold", column)
            table = table.drop(columns=column)
    return tuple(feature_columns(table, path, named=named, intake=intake))


def _values(table: pd.DataFrame, rule: WindowRule, path: Path, intake: Intake) -> tuple[np.ndarray, np.ndarray]:
    """Return the channels of each row, float32 (rows, channels), and the rows that lack a value, bool (rows,)."""
    missing = np.zeros(len(table), dtype=bool)
    parts = []
    for column in rule.channels:
        if column not in table.columns:
            raise DataError(f"{path} has no column {shown(column)}, which is a channel of the set's windows")
        lacking = missing_rows(table[column])
        missing |= lacking
        try:
            parts.append(numbers_of(table[column], column, intake, lacking))
        except DataError as error:
            raise DataError(f"{path}: {shown(column)}: {error}") from None
        if lacking.any():
            intake.note("column with missing values, which are gaps", column, f"{int(lacking.sum())} values")
    return np.stack(parts, axis=1), missing


def _check_times(rule: WindowRule, dated: bool, path: Path) -> None:
    if dated != rule.dated:
        kinds = ("numbers", "dates")
        raise DataError(
            f"{path}: the times in {shown(rule.time)} are {kinds[dated]}, and those of the set {kinds[rule.dated]}"
        )


def _kept(
    found: Windows, series: Series, label: np.ndarray | None, onto: Prepared | None, intake: Intake
) -> np.ndarray:
    """Return the numbers of the windows that are taken: those that the set lacks, with one label each."""
    known = {} if onto is None else known_files(onto)
    kept = []
    for number in range(len(found.x)):
        name = window_name(found, series, number)
        if name in known:
            intake.know("windows")
        elif label is not None and len(set(label[found.rows[number]].tolist())) > 1:
            intake.leave_out(MIXED, name)
        else:
            kept.append(number)
    if not kept and onto is not None:
        raise NothingNew(f"{onto.manifest.name!r} has all complete windows with one label already: nothing was added")
    if not kept:
        raise DataError("every complete window has more than one label: give a shorter --window")
    return np.array(kept)
