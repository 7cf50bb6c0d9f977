"""Windows of time series: a table with a time and the name of a series in each row becomes arrays of equal length.

A window is (channels, length): `length` samples of a regular series (`shoal.data.intake.times`), of every column that
is a measurement. Windows begin at whole steps from midnight as clocks show it in the time zone of the times, or from 0
where times are numbers. A window that lacks a sample is left out; none is filled, and nothing is averaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json
from shoal.data.intake.options import WindowOptions
from shoal.data.intake.times import SECOND, Times, length_text, regular_places, time_text, usual_distance
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Manifest

WINDOWS = "windows"
"""Entry of a manifest's `extra` with the rule by which windows were cut."""
MIN_LENGTH = 2
INCOMPLETE = "window without exactly its samples"
"""There is a gap, its series does not fill it, or the clocks change in it."""
MIXED = "window with more than one label"


@dataclass(frozen=True)
class WindowRule:
    """How the windows of a set were cut, so that later rows are cut in the same way.

    Attributes:
        client, time: columns.
        series: a column; empty where each client has one series.
        channels: the columns that are measured, in the order of the channels.
        dated: whether times are dates.
        zone: the time zone whose days count; empty: no zone is stated, so that days are those of UTC.
        scale: ticks in a unit of times that are numbers; 1 for dates, whose ticks are nanoseconds.
        window, step: ticks that a window lasts, and those between the beginnings of two windows.
        length: samples in a window.
        origin: the tick at which a window begins: a midnight as the clocks of `zone` show it, or 0.
    """

    client: str
    time: str
    series: str
    channels: tuple[str, ...]
    dated: bool
    zone: str
    scale: int
    window: int
    step: int
    length: int
    origin: int

    @property
    def distance(self) -> float:
        """Ticks between two samples."""
        return self.window / self.length

    def words(self) -> str:
        """Return the rule in words."""
        apart = self.distance / (SECOND if self.dated else self.scale)
        unit = " seconds" if self.dated else ""
        zone = f", in the time zone {self.zone or 'UTC'}" if self.dated else ""
        stride = round(self.step / self.distance)
        return f"{self.length} samples {apart:g}{unit} apart; one begins every {stride} samples{zone}"


def window_rule(manifest: Manifest) -> WindowRule:
    """Return how the windows of a set were cut.

    Raises:
        DataError: the set does not hold windows, or an earlier version of Shoal cut them in another way.
    """
    if WINDOWS not in manifest.extra:
        raise DataError(f"{manifest.name!r} holds {manifest.kind}s and no windows")
    try:
        return record_from_json(WindowRule, manifest.extra[WINDOWS])
    except BadRecord as error:
        raise DataError(
            f"the windows of {manifest.name!r} were cut by an earlier version of Shoal ({error}): add its tables again "
            "with --force"
        ) from None


@dataclass(frozen=True)
class Series:
    """The samples of one series, by time.

    Attributes:
        name: of the series.
        rows: their rows in the table.
        times: of these rows, ascending.
    """

    name: str
    rows: np.ndarray
    times: Times


@dataclass(frozen=True)
class Windows:
    """Windows that are complete.

    Attributes:
        x: float32 (n, channels, length).
        rows: the rows of the table in each window, int64 (length,) each.
        names: the series and the time at which each window begins, such as a/m1@2024-03-02T00:00:00.
    """

    x: np.ndarray
    rows: list[np.ndarray]
    names: list[str]


def duration(text: str, option: str, times: Times) -> int:
    """Return a duration in ticks.

    Raises:
        DataError: another text, or a duration that is not above 0.
    """
    ticks = 0
    with contextlib.suppress(ValueError, OverflowError):
        if not times.dated:
            ticks = round(float(text) * times.scale)
        elif not text.strip().replace(".", "", 1).isdigit():  # pandas would take it for nanoseconds
            ticks = pd.Timedelta(text).as_unit("ns").value
    if ticks <= 0:
        expected = "a duration such as 24h, 15min or 7d" if times.dated else "a number, as the times are numbers"
        raise DataError(f"{option} {text!r}: expected {expected}")
    return ticks


def split_series(keys: Sequence[str], times: Times) -> list[Series]:
    """Return all series; `keys` names the series of each row."""
    names, number = np.unique(np.asarray(keys, dtype=str), return_inverse=True)
    order = np.lexsort((times.ticks, number))
    parts = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    return [Series(str(name), part, times.rows(part)) for name, part in zip(names, parts, strict=True)]


def make_rule(options: WindowOptions, series: Sequence[Series], client: str, channels: tuple[str, ...]) -> WindowRule:
    """Return the rule of a new set.

    Args:
        options: of the user.
        series: all of them.
        client: the column of clients.
        channels: the measured columns.

    Raises:
        DataError: --window or --step is not a whole number of samples.
    """
    assert options.window is not None
    times = series[0].times
    window = duration(options.window, "--window", times)
    step = window if options.step is None else duration(options.step, "--step", times)
    distances = sorted(distance for part in series if (distance := usual_distance(part.times)))
    if not distances:
        raise DataError("no series has two samples at different times: name the series of a row with --series-column")
    usual = distances[len(distances) // 2]
    for option, ticks in (("--window", window), ("--step", step)):
        count = ticks / usual
        if not usual or abs(count - round(count)) > 0.25 or not round(count):
            raise DataError(
                f"{option}: expected a multiple of the distance between samples, {length_text(usual, times)}"
            )
    length = round(window / usual)
    if length < MIN_LENGTH:
        raise DataError(
            f"--window {options.window}: samples are {length_text(usual, times)} apart, so that a window would hold "
            f"{length}: give a longer one"
        )
    origin = 0
    if times.dated:
        first = min(int(part.times.ticks[0]) for part in series)
        zone = times.zone or "UTC"
        origin = pd.Timestamp(first, unit="ns", tz=zone).tz_localize(None).normalize().as_unit("ns").value
    return WindowRule(
        client=client,
        time=options.time_column,
        series=options.series_column or "",
        channels=channels,
        dated=times.dated,
        zone=times.zone,
        scale=times.scale,
        window=window,
        step=step,
        length=length,
        origin=int(origin),
    )


def cut(x: np.ndarray, missing: np.ndarray, series: Sequence[Series], rule: WindowRule, intake: Intake) -> Windows:
    """Return the complete windows of all series, and note the others.

    Args:
        x: the channels of each row, float32 (rows, channels).
        missing: rows that lack a value, bool (rows,): they are gaps.
        series: all of them.
        rule: of the set.
        intake: notes of windows that were left out.

    Raises:
        DataError: no window is complete, a series is irregular, or its samples are at other distances than the set's.
    """
    rows = []
    names = []
    for each in series:
        places, regular = regular_places(each.name, each.times, rule.distance)
        present = ~missing[each.rows]
        row = each.rows[present]
        for low, title in _complete(each.name, places[present], _shown(regular[present], rule), rule, intake):
            rows.append(row[low : low + rule.length])
            names.append(title)
    if not rows:
        raise DataError(
            f"no window of {rule.length} samples is complete in any of {len(series)} series: give longer series, "
            "without gaps, or, for a new set, a shorter --window"
        )
    return Windows(np.ascontiguousarray(x[np.stack(rows)].transpose(0, 2, 1), dtype=np.float32), rows, names)


def _shown(ticks: np.ndarray, rule: WindowRule) -> np.ndarray:
    """Return times as clocks show them in the rule's zone; an hour that they show twice stands still at its end."""
    if not rule.zone:
        return ticks
    utc = pd.DatetimeIndex(ticks.astype("datetime64[ns]"), tz="UTC")
    clocks = utc.tz_convert(rule.zone).tz_localize(None).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.asarray(np.maximum.accumulate(clocks))


def _complete(
    name: str, places: np.ndarray, ticks: np.ndarray, rule: WindowRule, intake: Intake
) -> list[tuple[int, str]]:
    """Return the number of the first sample of each complete window, and its name."""
    if not len(places):
        return []
    later = ticks + round(rule.distance / 4)  # a sample that is due at the beginning may have been noted just before it
    numbers = []
    for part in np.split(later, np.flatnonzero(np.diff(later) > rule.window) + 1):  # none lies in a longer gap
        first = (int(part[0]) - rule.window - rule.origin) // rule.step + 1
        numbers.append(np.arange(first, (int(part[-1]) - rule.origin) // rule.step + 1))
    begins = rule.origin + rule.step * np.concatenate(numbers)
    lows = np.searchsorted(later, begins)
    highs = np.searchsorted(later, begins + rule.window)
    whole = []
    for begin, low, high in zip(begins.tolist(), lows.tolist(), highs.tolist(), strict=True):
        count = high - low
        if not count:
            continue
        intake.see("windows")
        title = f"{name}@{time_text(begin, rule.scale, dated=rule.dated)}"
        if count == rule.length and places[high - 1] - places[low] == count - 1:
            whole.append((low, title))
        else:
            intake.leave_out(INCOMPLETE, title, f"{count} of {rule.length} samples")
    return whole
