"""A user's table of time series as a batch of windows: client, label and channels of each window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.core.records import record_to_json
from shoal.data.intake.client_table import ClientTable, read_client_table, table_origin
from shoal.data.intake.columns import NO_TEXT, feature_columns
from shoal.data.intake.names import in_order, names_of
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_store import Batch, NothingNew, known_files
from shoal.data.intake.spelling import tidy
from shoal.data.intake.table_coding import COLUMNS, MEASUREMENTS, missing_rows
from shoal.data.intake.tables import find_column, numbers_of
from shoal.data.intake.times import Times, times_of
from shoal.data.intake.windows import (
    MIXED,
    WINDOWS,
    Series,
    WindowRule,
    Windows,
    cut,
    make_rule,
    split_series,
    window_rule,
)
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


def read_windows(path: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake) -> Batch:
    """Return the windows of a table as they would be stored; nothing is written.

    Args:
        path: the table.
        onto: the set to append to, whose windows are cut as before; windows that it has are left out.
        options: of the user; `windows` of a new set.
        intake: notes of what is taken, adapted and left out.

    Raises:
        DataError: see `shoal.data.intake.own.add` and `shoal.data.intake.windows`.
    """
    if options.missing is not None:
        raise DataError("--missing is for rows that are vectors: in windows a missing value is a gap")
    rule = None
    if onto is not None:
        if options.cuts_windows:
            raise DataError("the set knows how its windows are cut: leave --window out with --append")
        rule = window_rule(onto.manifest)
        options = replace(options, client_column=rule.client, time_column=rule.time, series_column=rule.series)
    rows = read_client_table(path, onto, options, intake, (options.series_column or "",))
    series = _series(rows, options, rule, path, intake)
    table = rows.columns.drop(columns=[tidy(options.time_column), tidy(options.series_column or "")], errors="ignore")
    if rule is None:
        channels = feature_columns(table, path, named=options.features, max_categories=NO_TEXT, intake=intake)
        rule = make_rule(options, series, rows.client_column, tuple(channels))
    refuse_overlap(rule, options.test)
    windows = cut(*_values(table, rule, path, intake), series, rule, intake)
    kept = _kept(windows, rows.label, onto, intake)
    first = [windows.rows[k][0] for k in kept]
    owner = rows.client[first].tolist()
    for name in in_order(set(rows.client) - set(owner)):
        intake.leave_out("client without a new complete window", name)
    intake.take("windows", len(owner))
    extra = table_origin(path, onto, rows.client_column, rows.label_column)
    extra[WINDOWS] = record_to_json(rule)
    if onto is None:
        extra["features"] = list(rule.channels)
        if len(rule.channels) > 1:
            extra[COLUMNS] = MEASUREMENTS
    return Batch(
        "series",
        windows.x[kept],
        None if rows.label is None else rows.label[first].tolist(),
        owner,
        in_order(owner),
        [windows.names[k] for k in kept],
        source=f"series of table {path.name}",
        extra=extra,
        intake=intake,
    )


def new_windows(path: Path, rule: WindowRule, intake: Intake) -> tuple[np.ndarray, list[str]]:
    """Return the windows of a table for a model of a set of windows, (n, channels, length), and their names.

    Args:
        path: a table of new samples, with the columns of the set.
        rule: of the set.
        intake: notes of what is left out.

    Raises:
        DataError: a column is missing, times of another kind, irregular series, or no complete window.
    """
    options = AddOptions(client_column=rule.client, time_column=rule.time, series_column=rule.series)
    rows = read_client_table(path, None, options, intake, (rule.series,))
    series = _series(rows, options, rule, path, intake)
    windows = cut(*_values(rows.columns, rule, path, intake), series, rule, intake)
    intake.take("windows", len(windows.x))
    return windows.x, windows.names


def _series(
    rows: ClientTable, options: AddOptions, rule: WindowRule | None, path: Path, intake: Intake
) -> list[Series]:
    """Return the series of a table; each is called CLIENT, or CLIENT/SERIES where a column names the series."""
    times = _times(
        rows.columns, find_column(rows.columns, options.time_column, path, "--time-column"), rule, path, intake
    )
    keys = list(rows.client)
    if options.series_column and options.series_column != rows.client_column:
        column = find_column(rows.columns, options.series_column, path, "--series-column")
        names = names_of(rows.columns[column], path, "series", (), intake)
        keys = [f"{client}/{name}" for client, name in zip(rows.client, names, strict=True)]
    return split_series(keys, times)


def _times(table: pd.DataFrame, column: str, rule: WindowRule | None, path: Path, intake: Intake) -> Times:
    """Return the times of a table's rows, which are of the same kind as those of the set."""
    times = times_of(table[column], column, None if rule is None else rule.scale)
    if times.remark:
        intake.note(times.remark, column)
    if rule is None:
        return times
    if times.dated != rule.dated:
        kinds = ("numbers", "dates")
        raise DataError(
            f"{path}: the times in {shown(column)} are {kinds[times.dated]}, and those of the set {kinds[rule.dated]}"
        )
    if bool(times.zone) != bool(rule.zone):
        has, needs = ("a", "none") if times.zone else ("no", rule.zone)
        raise DataError(f"{path}: the times in {shown(column)} have {has} time zone, and those of the set have {needs}")
    return replace(times, zone=rule.zone)


def refuse_overlap(rule: WindowRule, test: float) -> None:
    """Refuse a test part of windows that share samples with windows of the training part."""
    if test and rule.step < rule.window:
        raise DataError(
            "windows overlap, so that those of the test part would share samples with those to train on: give --step "
            "as long as --window, or leave --test out"
        )


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


def _kept(windows: Windows, label: np.ndarray | None, onto: PreparedSet | None, intake: Intake) -> np.ndarray:
    """Return the numbers of the windows that are taken: those that the set lacks, with one label each."""
    known = {} if onto is None else known_files(onto)
    kept = []
    for number, name in enumerate(windows.names):
        if name in known:
            intake.know("windows")
        elif label is not None and len(set(label[windows.rows[number]].tolist())) > 1:
            intake.leave_out(MIXED, name)
        else:
            kept.append(number)
    if not kept and onto is not None:
        raise NothingNew(f"{onto.manifest.name!r} has all complete windows with one label already: nothing was added")
    if not kept:
        raise DataError("every complete window has more than one label: give a shorter --window")
    return np.array(kept)
