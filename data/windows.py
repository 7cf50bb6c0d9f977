"""Windows of time series: a table with a time and the name of a series in each row becomes arrays of equal length.

A window is (channels, length): `length` samples at equal distances, of every column that is a measurement. Windows
begin at whole steps from one origin, midnight before the first sample, so that those of a day begin at midnight. A
window that lacks a sample is left out; none is filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.core.records import record_from_json
from shoal.data.intake import Intake
from shoal.data.prepared import Manifest
from shoal.data.tables import some_rows

WINDOWS = "windows"
"""Entry of a manifest's `extra` with the rule by which windows were cut."""
TOLERANCE = 0.01
"""Distances between samples are equal up to this share of a distance."""
DAY = 86_400.0
MIN_LENGTH = 2
GAP = "window with a gap"
EDGE = "window that its series does not fill"
MIXED = "window with more than one label"
SHORTER = "give a shorter --window, or --every to average samples over a longer time"
"""Advice for a new set without a complete window: its rule can still be chosen."""
LONGER = "give longer series, without gaps"
"""Advice where the rule is that of a set or of a model."""


@dataclass(frozen=True)
class WindowOptions:
    """What the user says about windows; times are durations such as 24h or, where times are numbers, numbers.

    Attributes:
        window: the length of a window.
        step: the time between the beginnings of two windows; None: as long as a window.
        every: the time between two samples, over which samples are averaged; None: series are regular already.
        time_column: the time of a row.
        series_column: the series of a row; None: each client has one series.
    """

    window: str | None = None
    step: str | None = None
    every: str | None = None
    time_column: str = "time"
    series_column: str | None = None

    @property
    def given(self) -> bool:
        """Whether the user asks for windows.

        Raises:
            DataError: other options of windows are given without their length.
        """
        if self.window is None and (self.step or self.every or self.series_column):
            raise DataError("--step, --every and --series-column are for windows: give --window, too")
        return self.window is not None


@dataclass(frozen=True)
class WindowRule:
    """How the windows of a set were cut, so that later rows are cut in the same way.

    Attributes:
        client, time: columns.
        series: a column; empty where each client has one series.
        channels: the columns that are measured, in the order of the channels.
        dated: whether times are dates, in seconds since 1970 (UTC); else they are numbers.
        every: seconds, or units of a time that is a number, between two samples.
        length: samples in a window.
        step: samples between the beginnings of two windows.
        origin: a time at which a window begins.
        averaged: whether samples are averaged over `every`.
    """

    client: str
    time: str
    series: str
    channels: tuple[str, ...]
    dated: bool
    every: float
    length: int
    step: int
    origin: float
    averaged: bool

    def words(self) -> str:
        """Return the rule in words."""
        averaged = ", each the mean of its samples" if self.averaged else ""
        return (
            f"{self.length} times of {self.every:g} {_unit(self.dated)}{averaged}; one begins every {self.step} times"
        )

    def named(self, position: int) -> str:
        """Return the time of a sample's place in words."""
        time = self.origin + position * self.every
        if not self.dated:
            return f"{time:g}"
        moment = pd.Timestamp(time, unit="s").round("ms")
        return str(moment.isoformat(timespec="minutes" if moment.floor("min") == moment else "milliseconds"))


def window_rule(manifest: Manifest) -> WindowRule:
    """Return how the windows of a set were cut."""
    return record_from_json(WindowRule, manifest.extra[WINDOWS])


@dataclass(frozen=True)
class Series:
    """The samples of all series, by time within each.

    Attributes:
        name: of each series.
        row: for each series the rows of the table.
        time: for each series the time of these rows, float64, ascending.
    """

    name: list[str]
    row: list[np.ndarray]
    time: list[np.ndarray]


@dataclass(frozen=True)
class Windows:
    """Windows that are complete.

    Attributes:
        x: float32 (n, channels, length).
        series: the number of each window's series, int64 (n,).
        rows: the rows of the table in each window, int64 (rows,) each.
        begin: the time at which each window begins, in words.
    """

    x: np.ndarray
    series: np.ndarray
    rows: list[np.ndarray]
    begin: list[str]


def times_of(values: pd.Series, column: str) -> tuple[np.ndarray, bool]:
    """Return a column of times as float64 (rows,), and whether they are dates.

    Raises:
        DataError: values that are missing, or neither numbers nor dates in ISO form.
    """
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        times = values.to_numpy(np.float64, na_value=np.nan)
        dated = False
    else:
        try:
            parsed = pd.to_datetime(values, utc=True, errors="coerce", format="ISO8601")
        except (TypeError, ValueError) as error:
            raise DataError(f"column {shown(column)} holds no times ({short_text(error)})") from None
        times = ((parsed - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
        dated = True
    bad = np.flatnonzero(~np.isfinite(times))
    if len(bad):
        raise DataError(
            f"column {shown(column)}: {ascii(values.iloc[bad[0]])[:60]} in {some_rows(bad)} is no time: expected "
            "numbers, or dates such as 2024-01-31 13:30"
        )
    return times, dated


def duration(text: str, option: str, *, dated: bool) -> float:
    """Return a duration in seconds, or a plain number where times are numbers.

    Raises:
        DataError: another text, or a duration that is not above 0.
    """
    try:
        value = pd.Timedelta(text).total_seconds() if dated else float(text)
    except ValueError:
        value = float("nan")
    if dated and text.strip().replace(".", "", 1).isdigit():
        value = float("nan")  # pandas would take it for nanoseconds
    if not 0 < value < float("inf"):
        expected = "a duration such as 24h, 15min or 7d" if dated else "a number, as the times are numbers"
        raise DataError(f"{option} {text!r}: expected {expected}")
    return value


def split_series(keys: Sequence[str], times: np.ndarray) -> Series:
    """Return the rows of each series by time; `keys` names the series of each row."""
    names, number = np.unique(np.asarray(keys, dtype=str), return_inverse=True)
    order = np.lexsort((times, number))
    parts = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    return Series([str(name) for name in names], parts, [times[part] for part in parts])


def make_rule(
    options: WindowOptions,
    series: Series,
    columns: tuple[str, str, str],
    channels: tuple[str, ...],
    *,
    dated: bool,
) -> WindowRule:
    """Return the rule of a new set.

    Args:
        options: of the user.
        series: all samples.
        columns: of clients, of times and of series; the last is empty where each client has one series.
        channels: the measured columns.
        dated: whether times are dates.

    Raises:
        DataError: durations that do not divide one another.
    """
    assert options.window is not None
    every = usual_distance(series) if options.every is None else duration(options.every, "--every", dated=dated)
    window = duration(options.window, "--window", dated=dated)
    step = window if options.step is None else duration(options.step, "--step", dated=dated)
    length = _whole(window / every, "--window", options.window, every)
    steps = _whole(step / every, "--step", options.step or options.window, every)
    if length < MIN_LENGTH:
        raise DataError(
            f"--window {options.window}: samples are {every:g} {_unit(dated)} apart, so that a window would hold "
            f"{length}: give a longer one"
        )
    first = min(float(times[0]) for times in series.time)
    unit = DAY if dated else step
    origin = float(np.floor(first / unit) * unit)
    client, time, name = columns
    return WindowRule(client, time, name, channels, dated, every, length, steps, origin, options.every is not None)


def usual_distance(series: Series) -> float:
    """Return the most frequent distance between two samples of a series.

    Raises:
        DataError: no series has two samples at different times.
    """
    distances: Counter[float] = Counter()
    for times in series.time:
        between = np.diff(times)
        distances.update(np.round(between[between > 0], 6).tolist())
    if not distances:
        raise DataError("no series has two samples at different times: name the series of a row with --series-column")
    return distances.most_common(1)[0][0]


def cut(
    x: np.ndarray, missing: np.ndarray, series: Series, rule: WindowRule, intake: Intake, advice: str = LONGER
) -> Windows:
    """Return the complete windows of all series, and note the others.

    Args:
        x: the channels of each row, float32 (rows, channels).
        missing: rows that lack a value, bool (rows,): they are gaps.
        series: the rows of each series.
        rule: of the set.
        intake: notes of windows that were left out, and of averaged samples.
        advice: what to do where no window is complete, for the error.

    Raises:
        DataError: no window is complete; or samples at irregular distances or twice at one time, without averaging.
    """
    parts: list[np.ndarray] = []
    numbers: list[int] = []
    rows: list[np.ndarray] = []
    begin: list[str] = []
    for number, (name, own, times) in enumerate(zip(series.name, series.row, series.time, strict=True)):
        places = _places(name, times, rule, intake)
        present = ~missing[own]
        places = places[present]
        own = own[present]
        distinct, values = _averaged(places, x[own])
        for start, first in _complete(name, distinct, rule, intake):
            low, high = np.searchsorted(places, (start, start + rule.length)).tolist()
            parts.append(values[first : first + rule.length].T)
            numbers.append(number)
            rows.append(own[low:high])
            begin.append(rule.named(start))
    if not parts:
        raise DataError(f"no window of {rule.length} samples is complete in any of {len(series.name)} series: {advice}")
    stacked = np.ascontiguousarray(np.stack(parts), dtype=np.float32)
    return Windows(stacked, np.array(numbers), rows, begin)


def _places(name: str, times: np.ndarray, rule: WindowRule, intake: Intake) -> np.ndarray:
    """Return the place of each sample, whole numbers of `every` from the origin, int64 (samples,)."""
    places = (times - rule.origin) / rule.every
    if rule.averaged:
        whole = np.floor(places + 1e-6).astype(np.int64)
        repeated = len(whole) - len(np.unique(whole))
        if repeated:
            intake.adapt("samples averaged over --every", name, f"{len(whole)} samples to {len(whole) - repeated}")
        return whole
    distances = np.diff(places)
    if (distances <= TOLERANCE).any():
        at = int(np.argmax(distances <= TOLERANCE))
        raise DataError(
            f"series {shown(name)} has two samples at {rule.named(round(places[at]))}: name the series of a row with "
            "--series-column, or average samples with --every"
        )
    if (np.abs(distances - np.round(distances)) > TOLERANCE).any():
        low, high = distances.min() * rule.every, distances.max() * rule.every
        unit = _unit(rule.dated)
        raise DataError(
            f"series {shown(name)} is irregular: its samples are {low:g} to {high:g} {unit} apart, and most are "
            f"{rule.every:g} {unit} apart: average them with --every"
        )
    return np.floor(places + TOLERANCE).astype(np.int64)


def _averaged(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each place once, with the mean of its samples."""
    distinct, first, counts = np.unique(places, return_index=True, return_counts=True)
    if len(distinct) == len(places):
        return places, values
    sums = np.add.reduceat(values.astype(np.float64), first, axis=0)
    return distinct, (sums / counts[:, None]).astype(np.float32)


def _complete(name: str, places: np.ndarray, rule: WindowRule, intake: Intake) -> list[tuple[int, int]]:
    """Return the place at which each complete window begins, and the number of its first sample."""
    if not len(places):
        return []
    first = -(-(int(places[0]) - rule.length + 1) // rule.step)
    last = int(places[-1]) // rule.step
    found: list[tuple[int, int]] = []
    for start in range(first * rule.step, last * rule.step + 1, rule.step):
        low, high = np.searchsorted(places, (start, start + rule.length)).tolist()
        intake.see("windows")
        if high - low == rule.length:
            found.append((start, low))
            continue
        inside = start >= places[0] and start + rule.length - 1 <= places[-1]
        detail = f"{high - low} of {rule.length} samples"
        intake.leave_out(GAP if inside else EDGE, f"{name}@{rule.named(start)}", detail)
    return found


def _whole(number: float, option: str, text: str, every: float) -> int:
    if abs(number - round(number)) > 1e-6 * max(number, 1) or round(number) < 1:
        raise DataError(f"{option} {text}: expected a multiple of the distance between samples, {every:g}")
    return round(number)


def _unit(dated: bool) -> str:
    return "seconds" if dated else "units"
