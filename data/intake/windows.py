"""Windows of time series: a table with a time and the name of a series in each row becomes arrays of equal length.

A window is (channels, length): `length` samples of a regular series (`shoal.data.intake.clocks`), of every column that
is a measurement. Windows begin at whole steps from midnight in the time zone of the times, or from 0 where times are
numbers. A window that lacks a sample is left out; none is filled, and nothing is averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.core.records import BadRecord, record_from_json
from shoal.data.intake.clocks import RESAMPLE, Clock, length_text, read_clock
from shoal.data.intake.options import WindowOptions
from shoal.data.intake.times import Times, time_text
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Manifest

WINDOWS = "windows"
"""Entry of a manifest's `extra` with the rule by which windows were cut."""
MIN_LENGTH = 2
GAP = "window with a gap"
EDGE = "window that its series does not fill"
CHANGE = "window in which the clocks change, such as a day of 23 or 25 hours"
MIXED = "window with more than one label"
SHORTER = "give a shorter --window"
"""Advice for a new set without a complete window: its rule can still be chosen."""
LONGER = "give longer series, without gaps"
"""Advice where the rule is that of a set or of a model."""


@dataclass(frozen=True)
class WindowRule:
    """How the windows of a set were cut, so that later rows are cut in the same way.

    Times are nanoseconds since 1970, or the numbers of the column, as fractions.

    Attributes:
        client, time: columns.
        series: a column; empty where each client has one series.
        channels: the columns that are measured, in the order of the channels.
        dated: whether times are dates.
        zone: the time zone whose days count; empty: no zone is stated, so that days are those of UTC.
        window, step: the time that a window lasts, and that between the beginnings of two windows.
        length: samples in a window.
        stride: samples between the beginnings of two windows.
        origin: a time at which a window begins: a midnight as the clocks of `zone` show it, or 0.
        clocks: for each series the line on which its times lie.
    """

    client: str
    time: str
    series: str
    channels: tuple[str, ...]
    dated: bool
    zone: str
    window: str
    step: str
    length: int
    stride: int
    origin: str
    clocks: Mapping[str, Clock] = field(default_factory=dict)

    def words(self) -> str:
        """Return the rule in words."""
        distance = length_text(Fraction(self.window) / self.length, dated=self.dated)
        zone = f", in the time zone {self.zone or 'UTC'}" if self.dated else ""
        return f"{self.length} samples {distance} apart; one begins every {self.stride} samples{zone}"


def window_rule(manifest: Manifest) -> WindowRule:
    """Return how the windows of a set were cut.

    Raises:
        DataError: an earlier version of Shoal cut them in another way.
    """
    try:
        return record_from_json(WindowRule, manifest.extra[WINDOWS])
    except BadRecord as error:
        raise DataError(
            f"the windows of {manifest.name!r} were cut by an earlier version of Shoal ({error}): add its tables again "
            "with --force"
        ) from None


@dataclass(frozen=True)
class Series:
    """The samples of all series, by time within each.

    Attributes:
        name: of each series.
        row: for each series the rows of the table.
        times: for each series the times of these rows, ascending.
    """

    name: list[str]
    row: list[np.ndarray]
    times: list[Times]


@dataclass(frozen=True)
class Windows:
    """Windows that are complete.

    Attributes:
        x: float32 (n, channels, length).
        rows: the rows of the table in each window, int64 (length,) each.
        names: the series, the position and the time at which each window begins, such as a/m1@18@2024-03-02T00:00.
        rule: the rule of the set, with the clocks of these series.
    """

    x: np.ndarray
    rows: list[np.ndarray]
    names: list[str]
    rule: WindowRule


def duration(text: str, option: str, *, dated: bool) -> Fraction:
    """Return a duration in nanoseconds, or a plain number where times are numbers.

    Raises:
        DataError: another text, or a duration that is not above 0.
    """
    value = Fraction(0)
    try:
        if not dated:
            value = Fraction(text)
        elif not text.strip().replace(".", "", 1).isdigit():  # pandas would take it for nanoseconds
            value = Fraction(pd.Timedelta(text).as_unit("ns").value)
    except (ValueError, ZeroDivisionError):
        pass
    if value <= 0:
        expected = "a duration such as 24h, 15min or 7d" if dated else "a number, as the times are numbers"
        raise DataError(f"{option} {text!r}: expected {expected}")
    return value


def split_series(keys: Sequence[str], times: Times) -> Series:
    """Return the rows of each series by time; `keys` names the series of each row."""
    names, number = np.unique(np.asarray(keys, dtype=str), return_inverse=True)
    order = np.lexsort((times.ticks, number))
    parts = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    return Series([str(name) for name in names], parts, [times.rows(part) for part in parts])


def make_rule(
    options: WindowOptions, series: Series, columns: tuple[str, str, str], channels: tuple[str, ...]
) -> WindowRule:
    """Return the rule of a new set, without clocks.

    Args:
        options: of the user.
        series: all samples.
        columns: of clients, of times and of series; the last is empty where each client has one series.
        channels: the measured columns.

    Raises:
        DataError: series are irregular, or --window or --step is not a whole number of samples.
    """
    assert options.window is not None
    dated = series.times[0].dated
    zone = series.times[0].zone
    window = duration(options.window, "--window", dated=dated)
    step = window if options.step is None else duration(options.step, "--step", dated=dated)
    clocks = [read_clock(name, times)[0] for name, times in zip(series.name, series.times, strict=True)]
    clocks = sorted((clock for clock in clocks if clock.position), key=lambda clock: clock.distance)
    if not clocks:
        raise DataError("no series has two samples at different times: name the series of a row with --series-column")
    usual = clocks[len(clocks) // 2]
    length = _samples(usual, window, "--window", options.window, dated)
    stride = _samples(usual, step, "--step", options.step or options.window, dated)
    if length < MIN_LENGTH:
        raise DataError(
            f"--window {options.window}: samples are {length_text(usual.distance, dated=dated)} apart, so that a "
            f"window would hold {length}: give a longer one"
        )
    origin = "0"
    if dated:
        first = min(int(times.ticks[0]) for times in series.times)
        origin = str(pd.Timestamp(first, unit="ns", tz=zone or "UTC").tz_localize(None).normalize().as_unit("ns").value)
    client, time, name = columns
    return WindowRule(client, time, name, channels, dated, zone, str(window), str(step), length, stride, origin)


def _samples(clock: Clock, wanted: Fraction, option: str, text: str, dated: bool) -> int:
    """Return how many samples a duration has.

    Raises:
        DataError: no whole number.
    """
    count = max(1, round(wanted / clock.distance))
    if not clock.holds(wanted, count):
        distance = length_text(clock.distance, dated=dated)
        near = sorted({max(1, int(wanted / clock.distance)), int(wanted / clock.distance) + 1})
        lengths = " or ".join(length_text(n * clock.distance, dated=dated) for n in near)
        raise DataError(
            f"{option} {text}: expected a multiple of the distance between samples, {distance}, such as {lengths}"
        )
    return count


def cut(
    x: np.ndarray, missing: np.ndarray, series: Series, rule: WindowRule, intake: Intake, advice: str = LONGER
) -> Windows:
    """Return the complete windows of all series, and note the others.

    Args:
        x: the channels of each row, float32 (rows, channels).
        missing: rows that lack a value, bool (rows,): they are gaps.
        series: the rows of each series.
        rule: of the set.
        intake: notes of windows that were left out.
        advice: what to do where no window is complete, for the error.

    Raises:
        DataError: no window is complete, a series is irregular, or its samples are at other distances than the set's.
    """
    parts: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    names: list[str] = []
    clocks = dict(rule.clocks)
    for name, row, times in zip(series.name, series.row, series.times, strict=True):
        clock, positions = read_clock(name, times, clocks.get(name))
        _check_rate(name, clock, rule)
        clocks[name] = clock
        present = ~missing[row]
        row = row[present]
        positions = positions[present]
        ticks = times.ticks[present]
        for low in _complete(name, clock, positions, times.rows(present), rule, intake):
            window = slice(low, low + rule.length)
            parts.append(x[row[window]].T)
            rows.append(row[window])
            names.append(_name(name, int(positions[low]), int(ticks[low]) * times.tick, rule))
    if not parts:
        raise DataError(f"no window of {rule.length} samples is complete in any of {len(series.name)} series: {advice}")
    stacked = np.ascontiguousarray(np.stack(parts), dtype=np.float32)
    return Windows(stacked, rows, names, replace(rule, clocks=clocks))


def _check_rate(name: str, clock: Clock, rule: WindowRule) -> None:
    if clock.position and not clock.holds(Fraction(rule.window), rule.length):
        distance = length_text(clock.distance, dated=rule.dated)
        usual = length_text(Fraction(rule.window) / rule.length, dated=rule.dated)
        raise DataError(
            f"series {shown(name)} has samples {distance} apart, and windows need samples {usual} apart: leave it out, "
            f"or {RESAMPLE}"
        )


def _complete(
    name: str, clock: Clock, positions: np.ndarray, times: Times, rule: WindowRule, intake: Intake
) -> list[int]:
    """Return the number of the first sample of each complete window."""
    if not len(positions) or not clock.position:
        return []
    whole: list[int] = []
    starts, changed, moments, parts = _beginnings(clock, times, rule)
    ends = starts + rule.length
    low = np.searchsorted(positions, starts.astype(np.int64))
    high = np.searchsorted(positions, ends.astype(np.int64))
    for k in np.flatnonzero(high > low).tolist():
        intake.see("windows")
        count = int(high[k] - low[k])
        title = _name(name, int(starts[k]), Fraction(int(moments[k]), parts), rule)
        if changed[k]:
            intake.leave_out(CHANGE, title)
        elif count == rule.length:
            whole.append(int(low[k]))
        else:
            inside = starts[k] >= positions[0] and ends[k] - 1 <= positions[-1]
            intake.leave_out(GAP if inside else EDGE, title, f"{count} of {rule.length} samples")
    return whole


def _beginnings(clock: Clock, times: Times, rule: WindowRule) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the windows that may have samples at these times.

    Returns:
        The position at which each begins, object (n,); whether clocks change in it, bool (n,); the time at which it
        begins, object (n,), and in how many parts a nanosecond or the unit of a number is divided there.
    """
    window, step, origin = (Fraction(text) for text in (rule.window, rule.step, rule.origin))
    first, last = (int(times.ticks[place]) * times.tick for place in (0, -1))
    slack = clock.distance
    if rule.dated:
        slack += 86_400 * 10**9  # clocks of no zone are further from UTC, or change by more
    steps = range(int((first - origin - window - slack) // step), int((last - origin + slack) // step) + 1)
    parts = int(np.lcm(step.denominator, origin.denominator))
    begin = int(origin * parts) + int(step * parts) * np.array(steps, dtype=object)
    changed = np.zeros(len(steps), dtype=bool)
    if rule.dated:
        utc, there = _utc(begin, rule.zone)
        end, there_too = _utc(begin + int(window), rule.zone)
        changed = ~there | ~there_too | (end - utc != int(window))
        begin = utc.astype(object)
    return clock.positions_from(begin, parts), changed, begin, parts


def _utc(shown_time: np.ndarray, zone: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times as clocks show them in UTC, int64 nanoseconds (n,), and whether clocks ever show them, bool (n,).

    Of a time that clocks show twice the first one counts; one that they skip is the moment at which they do.
    """
    local = pd.DatetimeIndex(shown_time.astype(np.int64).astype("datetime64[ns]"))
    twice = np.ones(len(local), dtype=bool)
    moved = local.tz_localize(zone or "UTC", ambiguous=twice, nonexistent="shift_forward")
    there = np.asarray(moved.tz_localize(None) == local)
    utc: np.ndarray = moved.tz_convert("UTC").tz_localize(None).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return utc, there


def _name(series: str, position: int, time: Fraction, rule: WindowRule) -> str:
    return f"{series}@{position}@{time_text(time, dated=rule.dated, zone=rule.zone)}"
