"""Places of regular times are exact at every rate, in every form of times; other times are refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.times import Times, regular_places, times_of, usual_distance

SAMPLES = 2000
EPOCH = 1_700_000_000


def epoch(times: list[Fraction], parts: int) -> list[int]:
    """Times since 1970 as whole numbers of 1 / `parts` seconds."""
    return [round(parts * time) + parts * EPOCH for time in times]


FORMS: dict[str, tuple[int, Callable[[list[Fraction]], pd.Series]]] = {
    "floats": (1, lambda times: pd.Series([float(time) for time in times])),
    "float32": (1, lambda times: pd.Series([float(time) for time in times], dtype="float32")),
    "epoch seconds": (1, lambda times: pd.Series([float(EPOCH + time) for time in times])),
    "epoch milliseconds": (1000, lambda times: pd.Series(epoch(times, 1000))),
    "epoch nanoseconds": (10**9, lambda times: pd.Series(epoch(times, 10**9))),
    "dates": (10**9, lambda times: pd.to_datetime(pd.Series(epoch(times, 10**6)), unit="us")),
    "five digits": (1, lambda times: pd.Series([round(float(time), 5) for time in times])),
    "texts": (
        10**9,
        lambda times: pd.Series([f"{time.isoformat()}Z" for time in pd.to_datetime(epoch(times, 10**6), unit="us")]),
    ),
}
TOO_COARSE = {(44_100, "epoch milliseconds")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "rate", [Fraction(50), Fraction(60), Fraction(256), Fraction(360), Fraction(44_100), Fraction(1, 60)]
)
@pytest.mark.parametrize("gaps", [0, 5])
def test_places_are_exact(rate: Fraction, form: str, gaps: int) -> None:
    there = np.ones(SAMPLES, dtype=bool)
    for gap in range(gaps):
        there[300 * gap + 50 : 300 * gap + 51 + 4 * gap] = False
    expected = np.flatnonzero(there)
    unit, make = FORMS[form]
    times = times_of(make([int(k) / rate for k in expected]), "t")
    distance = float(times.scale * unit / rate)
    if (rate, form) in TOO_COARSE:
        with pytest.raises(DataError, match="two samples at"):
            regular_places("a", times, distance)
        return
    assert usual_distance(times) == pytest.approx(distance, rel=0.01)
    places, regular = regular_places("a", times, distance)
    assert places.tolist() == expected.tolist()
    assert np.abs(regular - times.ticks).max() < distance / 2


def at(values: np.ndarray) -> Times:
    return times_of(pd.Series(values), "t")


@pytest.mark.parametrize(
    "values",
    [
        np.sort(np.random.default_rng(0).uniform(0, 1000, 500)),
        np.arange(500) + np.random.default_rng(0).normal(0, 0.05, 500),
        np.r_[0:100, 100.5:200],
        np.r_[0:100, 100 + 1.01 * np.arange(100)],
        np.arange(20) * 0.99,
        np.round(np.arange(500) / 0.6).astype(int),
    ],
    ids=["random", "jitter", "other phase", "other rate", "few at another rate", "600 Hz in ms"],
)
def test_irregular_times_are_refused(values: np.ndarray) -> None:
    times = at(values)
    distance = 1 / 0.6 if values.dtype == int and len(values) == 500 and values[1] == 2 else 1.0
    with pytest.raises(DataError, match=r"series a is irregular: its samples are .* apart in the mean"):
        regular_places("a", times, distance * times.scale)


def test_months_and_local_midnights_are_irregular() -> None:
    months = pd.Series(pd.date_range("2021-01-01", periods=36, freq="MS"))
    midnights = pd.Series(pd.date_range("2021-01-01", periods=360, tz="Europe/Berlin"))
    for values in (months, midnights):
        times = times_of(values, "t")
        with pytest.raises(DataError, match="irregular"):
            regular_places("a", times, usual_distance(times))


def test_a_missing_second_is_a_gap_where_times_are_whole_seconds() -> None:
    times = at(np.array([0, 1, 2, 4, 5]))
    assert regular_places("a", times, times.scale)[0].tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([True, False], "holds true and false, and no times"),
        ([1.0, np.inf], "inf in row 1 is no time"),
        (["2024-01-01 00:00", "soon"], "column t holds no times"),
        (["1", "2024-01-01"], "column t holds no times"),
        (["2024-01-01T00:00", "2024-01-01T00:00Z"], "all with one offset from UTC or all without"),
        (["2024-01-01T00:00+01:00", "2024-01-01T00:00Z"], "all with one offset from UTC or all without"),
        ([1, None], "nan in row 1 is no time"),
        (["1066-10-14T09:00", "1066-10-14T10:00"], "holds no times"),
        (np.array(["1066-10-14", "1066-10-15"], dtype="datetime64[s]"), "holds no times"),
        ([2**70, 2**70 + 1], "holds no times"),
    ],
)
def test_what_is_no_time_is_refused(values: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        times_of(pd.Series(values), "t")


def test_times_beyond_the_scale_of_a_set_are_refused() -> None:
    with pytest.raises(DataError, match=r"times up to 1e\+10 are too large"):
        times_of(pd.Series([10**10]), "t", 10**9)
