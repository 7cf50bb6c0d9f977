"""Times of samples as whole numbers, and the places of samples that are equally far apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.tables import some_rows

SECOND = 1_000_000_000
"""A tick of dates is a nanosecond since 1970 in UTC."""
NUMBERS = "column of times that are numbers: windows begin at multiples of --step, in UTC where numbers count from 1970"
NAIVE = "column of times without a time zone, which are UTC"
RESAMPLE = "resample it first (docs/data.md, Time series)"
EXPECTED = "expected numbers, or dates such as 2024-01-31 13:30, all with one offset from UTC or all without"
MAX_DIGITS = 18
"""Ticks have at most so many decimal digits, which int64 holds."""
MAX_DECIMALS = 9


@dataclass(frozen=True)
class Times:
    """A column of times.

    Attributes:
        ticks: int64 (rows,).
        scale: ticks in a unit of the column's numbers; 1 for dates.
        accuracy: of each time, in ticks; 0 where times are exact.
        dated: whether times are dates.
        zone: the time zone of dates, such as Europe/Berlin or UTC+01:00; empty: none is stated, so that they are UTC.
    """

    ticks: np.ndarray
    scale: int
    accuracy: float
    dated: bool
    zone: str = ""

    def rows(self, chosen: np.ndarray) -> Times:
        """Return the times of some rows."""
        return replace(self, ticks=self.ticks[chosen])

    @property
    def remark(self) -> str:
        """How times are understood, where the column does not say it itself."""
        if not self.dated:
            return NUMBERS
        return "" if self.zone else NAIVE


def times_of(values: pd.Series, column: str, scale: int | None = None) -> Times:
    """Return a column of times.

    Args:
        values: numbers or dates.
        column: its name, for errors.
        scale: of the set's times; None: the finest that int64 holds.

    Raises:
        DataError: values that are missing, or neither numbers nor dates in ISO form.
    """
    _refuse(values, values.isna().to_numpy(), column)
    if pd.api.types.is_bool_dtype(values):
        raise DataError(f"column {shown(column)} holds true and false, and no times: {EXPECTED}")
    if not pd.api.types.is_numeric_dtype(values):
        return _dates(values, column)
    numbers = values.to_numpy()
    _refuse(values, ~np.isfinite(numbers.astype(np.float64)), column)
    largest = max(abs(float(numbers.max())), abs(float(numbers.min())))
    if scale is None:
        scale = 10 ** max(0, min(MAX_DECIMALS, MAX_DIGITS - len(str(int(largest)))))
    if largest * scale >= 2.0**63:
        raise DataError(f"column {shown(column)}: times up to {largest:g} are too large: subtract a number")
    if values.dtype.kind in "iu":
        return Times(numbers.astype(np.int64) * scale, scale, 0.0, False)
    ticks = np.rint(numbers.astype(np.float64) * scale).astype(np.int64)
    spacing = float(np.spacing(np.abs(numbers).max()))
    return Times(ticks, scale, 2 * spacing * scale, False)


def _dates(values: pd.Series, column: str) -> Times:
    try:
        moments = values
        if values.dtype.kind != "M":
            moments = pd.to_datetime(values, format="ISO8601")
        zone = moments.dt.tz
        if zone is not None:
            moments = moments.dt.tz_convert(None)
        ticks = moments.astype("datetime64[ns]").astype(np.int64).to_numpy()
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"column {shown(column)} holds no times ({short_text(error)}): {EXPECTED}") from None
    return Times(ticks, 1, 0.0, True, "" if zone is None else str(zone))


def usual_distance(times: Times) -> float:
    """Return the mean number of ticks between two samples, gaps left aside; 0 for a single sample."""
    apart = np.diff(times.ticks)
    if not len(apart):
        return 0.0
    return float(apart[apart <= 1.5 * np.median(apart)].mean())


def regular_places(name: str, times: Times, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return by how many distances each sample comes after the first, int64 (samples,), and its regular time in ticks.

    Times that are given coarsely, such as 1/360 s in milliseconds, lie within one such step around regular ones.

    Args:
        name: of the series, for errors.
        times: ascending.
        distance: ticks between two samples.

    Raises:
        DataError: two samples have one time, or the series is irregular.
    """
    after = times.ticks - times.ticks[0]
    apart = np.diff(after)
    if (apart == 0).any():
        moment = time_text(int(times.ticks[int(np.argmin(apart))]), times.scale, dated=times.dated)
        raise DataError(
            f"series {shown(name)} has two samples at {moment}: name the series of a row with --series-column, or give "
            "times with more digits"
        )
    places = np.rint(after / distance).astype(np.int64)
    off = after - places * distance
    tolerance = times.accuracy + 1e-6 * distance
    step = int(np.gcd.reduce(apart)) if len(apart) else 0
    # Rounding to steps moves samples only where they are no whole number of steps apart.
    if len(apart) and step < apart.min() and abs(distance / step - round(distance / step)) > 1e-6:
        tolerance += step
    low, high = off.min(), off.max()
    if high - low >= min(tolerance, distance / 2):
        needed, there = (length_text(value, times) for value in (distance, usual_distance(times)))
        raise DataError(
            f"series {shown(name)} is irregular: its samples are {there} apart in the mean, and windows need samples "
            f"exactly {needed} apart: leave it out, or {RESAMPLE}"
        )
    return places, times.ticks[0] + np.rint((low + high) / 2 + places * distance).astype(np.int64)


def length_text(ticks: float, times: Times) -> str:
    """Return a duration in words, to six digits."""
    return f"{ticks / SECOND:g} seconds" if times.dated else f"{ticks / times.scale:g}"


def time_text(ticks: int, scale: int, *, dated: bool) -> str:
    """Return a date in ISO form, or a number.

    >>> time_text(1_709_254_800_000_000_000, 1, dated=True), time_text(125, 1000, dated=False)
    ('2024-03-01T01:00:00', '0.125')
    """
    if dated:
        return str(pd.Timestamp(ticks, unit="ns").isoformat())
    return str(ticks // scale) if ticks % scale == 0 else repr(ticks / scale)


def _refuse(values: pd.Series, bad: np.ndarray, column: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        value = ascii(str(values.iloc[rows[0]]))[1:-1]
        raise DataError(f"column {shown(column)}: {value[:60]} in {some_rows(rows)} is no time: {EXPECTED}")
