"""Times of samples as whole numbers, without rounding: 1/360 s and 1/44,100 s are no whole nanoseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.tables import some_rows

SECOND = 1_000_000_000
"""Dates count nanoseconds since 1970 in UTC."""
NUMBERS = "column of times that are numbers: windows begin at multiples of --step, in UTC where numbers count from 1970"
NAIVE = "column of times without a time zone, which are UTC"
SEVERAL = "column of times with several offsets: days are those of UTC (a Parquet column may name its time zone)"
_NUMBER = r"[-+]?(?:\d+\.?(\d*)|\.(\d+))"
_POWER = r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"
_CLOCK = re.compile(r"[^T\s]+[T\s]\s*\d{2}(?P<minute>:?\d{2})?(?P<second>:?\d{2})?(?:[.,](?P<digits>\d+))?")
_OFFSET = re.compile(r"[T\s]\s*[\d:.,]+\s*(Z|[-+]\d{2}(?::?\d{2})?)$")
_OFFSET_END = re.compile(r"(Z|[-+]\d{2}(?::?\d{2})?)$")
_DIGITS = str.maketrans("123456789", "000000000")


@dataclass(frozen=True)
class Times:
    """A column of times.

    Attributes:
        ticks: whole numbers of `tick`, int64 (rows,).
        tick: of a date 1, a nanosecond; of a number its smallest difference.
        unit: the accuracy of the times, in ticks.
        dated: whether times are dates.
        zone: the time zone of dates, such as Europe/Berlin or +01:00; empty: none is stated, so that they are UTC.
        remark: how times are understood, where the column does not say it itself.
    """

    ticks: np.ndarray
    tick: Fraction
    unit: int
    dated: bool
    zone: str = ""
    remark: str = ""

    def rows(self, chosen: np.ndarray) -> Times:
        """Return the times of some rows."""
        return replace(self, ticks=self.ticks[chosen])


def times_of(values: pd.Series, column: str) -> Times:
    """Return a column of times.

    The accuracy is that of the column's type, of the last printed digit of texts, or two spacings of a float.

    Raises:
        DataError: values that are missing, or neither numbers nor dates in ISO form.
    """
    _refuse(values, values.isna().to_numpy(), column)
    if pd.api.types.is_bool_dtype(values):
        _refuse(values, np.ones(len(values), dtype=bool), column)
    if pd.api.types.is_integer_dtype(values):
        return _whole(values, column)
    if pd.api.types.is_float_dtype(values):
        return _floats(values.to_numpy(dtype=getattr(values.dtype, "numpy_dtype", values.dtype)), values, column)
    if pd.api.types.is_datetime64_any_dtype(values):
        zone = "" if values.dt.tz is None else zone_name(str(values.dt.tz))
        unit = int(pd.Timedelta(1, unit=values.dt.unit) / pd.Timedelta(1, unit="ns"))
        return Times(_nanoseconds(values, values, column), Fraction(1), unit, True, zone, "" if zone else NAIVE)
    return _texts(values, column)


def zone_name(text: str) -> str:
    """Return the name of a time zone; fixed offsets have one spelling.

    >>> [zone_name(text) for text in ("Europe/Berlin", "UTC+01:00", "+0100", "Z", "-05")]
    ['Europe/Berlin', '+01:00', '+01:00', 'UTC', '-05:00']
    """
    offset = re.fullmatch(r"(?:UTC)?([-+]\d{2}):?(\d{2})?", text)
    if offset is None:
        return "UTC" if text in ("Z", "UTC", "Etc/UTC") else text
    name = f"{offset[1]}:{offset[2] or '00'}"
    return "UTC" if name[1:] == "00:00" else name


def time_text(time: Fraction, *, dated: bool, zone: str) -> str:
    """Return a time without rounding: a date in ISO form, with its offset where a zone is stated, or a number.

    >>> time_text(Fraction(1_709_254_800_000_000_000), dated=True, zone="")
    '2024-03-01T01:00'
    >>> time_text(Fraction(1_709_254_800_002_000_000), dated=True, zone="Europe/Berlin")
    '2024-03-01T02:00:00.002000+01:00'
    >>> time_text(Fraction(1, 8), dated=False, zone="")
    '0.125'
    """
    if not dated:
        return str(time.numerator) if time.denominator == 1 else repr(float(time))
    moment = pd.Timestamp(int(time), unit="ns", tz=zone or None)
    whole = moment.floor("min") == moment
    return str(moment.isoformat(timespec="minutes" if whole else "auto"))


def _texts(values: pd.Series, column: str) -> Times:
    texts = values.astype(str).str.strip()
    if not re.fullmatch(f"{_NUMBER}|{_POWER}", texts.iloc[0]):
        return _dates(texts, values, column)
    number = texts.str.fullmatch(_NUMBER).to_numpy(dtype=bool)
    power = texts.str.fullmatch(_POWER).to_numpy(dtype=bool)
    _refuse(values, ~(number | power), column)
    if power.any():
        return _floats(np.asarray(texts, dtype=object).astype(np.float64), values, column)
    digits = texts.str.extract(f"^{_NUMBER}$").fillna("").sum(axis=1).str.len().max()
    if not digits:
        return _whole(texts.str.rstrip("."), column)
    numbers = np.asarray(texts, dtype=object).astype(np.float64)
    tick = Fraction(1, 10 ** int(digits))
    if tick < 2 * Fraction(float(np.spacing(np.abs(numbers).max()))):  # more digits than a float holds
        return _floats(numbers, values, column)
    return Times(np.rint(numbers * 10.0**digits).astype(np.int64), tick, 1, False, remark=NUMBERS)


def _whole(values: pd.Series, column: str) -> Times:
    try:
        ticks = np.array([int(value) for value in values], dtype=np.int64)
    except OverflowError:
        raise DataError(f"column {shown(column)}: times beyond 2^63 cannot be read: subtract a number") from None
    return Times(ticks, Fraction(1), 1, False, remark=NUMBERS)


def _floats(numbers: np.ndarray, values: pd.Series, column: str) -> Times:
    _refuse(values, ~np.isfinite(numbers), column)
    tick = Fraction(float(np.spacing(np.abs(numbers).max())))
    # A power of two divides without rounding.
    return Times(np.rint(numbers.astype(np.float64) / float(tick)).astype(np.int64), tick, 2, False, remark=NUMBERS)


def _dates(texts: pd.Series, values: pd.Series, column: str) -> Times:
    try:
        moments = pd.to_datetime(texts, utc=True, errors="coerce", format="ISO8601")
    except (TypeError, ValueError) as error:
        raise DataError(f"column {shown(column)} holds no times ({short_text(error)})") from None
    ticks = _nanoseconds(moments, values, column)
    shape_of = [text.translate(_DIGITS) for text in texts]
    clocks = [match for shape in set(shape_of) if (match := _CLOCK.match(shape))]
    unit = SECOND // 10 ** min(max((len(match["digits"] or "") for match in clocks), default=0), 9)
    if not any(match["second"] for match in clocks):
        unit = 60 * SECOND if any(match["minute"] for match in clocks) else 3600 * SECOND
    zone, remark = _zone_of(texts, shape_of, column)
    return Times(ticks, Fraction(1), unit, True, zone, remark)


def _zone_of(texts: pd.Series, shape_of: list[str], column: str) -> tuple[str, str]:
    """Return the offset of texts, empty where none states one, and what is to be said of it."""
    stating = {shape for shape in set(shape_of) if _OFFSET.search(shape)}
    if not stating:
        return "", NAIVE
    if len(stating) < len(set(shape_of)):
        rows = np.flatnonzero([shape not in stating for shape in shape_of])
        raise DataError(
            f"column {shown(column)}: times without an offset from UTC, such as {texts.iloc[rows[0]]!a} in "
            f"{some_rows(rows)}, lie beside others with one: give all times one, or none"
        )
    ends = {text[-6:] for text in texts}
    offsets = {zone_name(match[1]) for end in ends if (match := _OFFSET_END.search(end))}
    return (offsets.pop(), "") if len(offsets) == 1 else ("UTC", SEVERAL)


def _nanoseconds(moments: pd.Series, values: pd.Series, column: str) -> np.ndarray:
    _refuse(values, moments.isna().to_numpy(), column)
    if moments.dt.tz is not None:
        moments = moments.dt.tz_convert("UTC").dt.tz_localize(None)
    try:
        whole: np.ndarray = moments.to_numpy().astype("datetime64[ns]").astype(np.int64)
        back = whole.astype("datetime64[ns]").astype(moments.to_numpy().dtype)
    except (OverflowError, ValueError):
        back = None
    if back is None or not np.array_equal(back, moments.to_numpy()):
        raise DataError(f"column {shown(column)}: expected times between the years 1678 and 2261")
    return whole


def _refuse(values: pd.Series, bad: np.ndarray, column: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        value = values.iloc[rows[0]]
        text = ascii(value) if isinstance(value, str) else ascii(str(value))[1:-1]
        raise DataError(
            f"column {shown(column)}: {text[:60]} in {some_rows(rows)} is no time: expected "
            "numbers, or dates such as 2024-01-31 13:30"
        )
