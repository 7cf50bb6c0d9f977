"""Positions of regular times are exact at every rate, in every form of times; other times are refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.clocks import read_clock
from shoal.data.intake.times import times_of

SAMPLES = 2000
EPOCH = 1_700_000_000


def epoch(times: list[Fraction], parts: int) -> list[int]:
    """Times since 1970 as whole numbers of 1 / `parts` seconds."""
    return [round(parts * time) + parts * EPOCH for time in times]


FORMS: dict[str, Callable[[list[Fraction]], pd.Series]] = {
    "floats": lambda times: pd.Series([float(time) for time in times]),
    "float32": lambda times: pd.Series([float(time) for time in times], dtype="float32"),
    "epoch seconds": lambda times: pd.Series([float(EPOCH + time) for time in times]),
    "epoch milliseconds": lambda times: pd.Series(epoch(times, 1000)),
    "epoch nanoseconds": lambda times: pd.Series(epoch(times, 10**9)),
    "dates": lambda times: pd.to_datetime(pd.Series(epoch(times, 10**6)), unit="us"),
    "printed numbers": lambda times: pd.Series([f"{float(time):.5f}" for time in times]),
    "printed floats": lambda times: pd.Series([repr(float(time)) for time in times]),
    "printed dates": lambda times: pd.Series(
        [f"{time.isoformat()}Z" for time in pd.to_datetime(epoch(times, 10**6), unit="us")]
    ),
}
TOO_COARSE = {(44_100, "epoch milliseconds")}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "rate", [Fraction(50), Fraction(60), Fraction(256), Fraction(360), Fraction(44_100), Fraction(1, 60)]
)
def test_positions_are_exact_and_go_on_where_samples_are_appended(rate: Fraction, form: str) -> None:
    for gaps in (0, 1, 5):
        there = np.ones(SAMPLES, dtype=bool)
        for gap in range(gaps):
            there[300 * gap + 50 : 300 * gap + 51 + 4 * gap] = False
        expected = np.flatnonzero(there)
        values = FORMS[form]([int(k) / rate for k in expected])
        if (rate, form) in TOO_COARSE:
            with pytest.raises(DataError, match="two samples at"):
                read_clock("a", times_of(values, "t"))
            continue
        _, positions = read_clock("a", times_of(values, "t"))
        assert positions.tolist() == expected.tolist()
        clock, first = read_clock("a", times_of(values[:700], "t"))
        _, later = read_clock("a", times_of(values[700:], "t"), clock)
        assert [*first.tolist(), *later.tolist()] == expected.tolist()


@pytest.mark.parametrize(
    "times",
    [
        np.sort(np.random.default_rng(0).uniform(0, 1000, 500)),
        np.arange(500) + np.random.default_rng(0).normal(0, 0.05, 500),
        np.sort(np.random.default_rng(0).choice(5000, 500, replace=False)),
        np.r_[0:100, 100.5:200],
        np.r_[0:100, 100 + 1.01 * np.arange(100)],
        np.round(np.arange(500) / 0.6),
    ],
    ids=["random", "jitter", "random whole", "other phase", "other rate", "600 Hz in milliseconds"],
)
def test_irregular_times_are_refused(times: np.ndarray) -> None:
    whole = np.array_equal(times, np.round(times))
    with pytest.raises(DataError, match="series a is irregular"):
        read_clock("a", times_of(pd.Series(times.astype(int) if whole else times), "t"))


def test_samples_with_another_phase_or_rate_are_not_appended() -> None:
    clock, _ = read_clock("a", times_of(pd.Series(range(0, 6000, 60)), "t"))
    for later in (range(6030, 9000, 60), [6000 + 59.6 * k for k in range(100)]):
        with pytest.raises(DataError, match="series a is irregular"):
            read_clock("a", times_of(pd.Series(later), "t"), clock)
    _, positions = read_clock("a", times_of(pd.Series(range(-600, 0, 60)), "t"), clock)
    assert positions.tolist() == list(range(-10, 0)), "earlier samples count back from the first time"


def test_a_missing_second_is_a_gap_where_times_are_whole_seconds() -> None:
    _, positions = read_clock("a", times_of(pd.Series([0, 1, 2, 4, 5]), "t"))
    assert positions.tolist() == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([True, False], "True in rows 0, 1 is no time"),
        ([1.0, np.inf], "inf in row 1 is no time"),
        (["2024-01-01 00:00", "soon"], "'soon' in row 1 is no time"),
        (["1", "2024-01-01"], "'2024-01-01' in row 1 is no time"),
        ([1, None], "nan in row 1 is no time"),
        (["1066-10-14T09:00", "1066-10-14T10:00"], "is no time|between the years 1678 and 2261"),
        (np.array(["1066-10-14", "1066-10-15"], dtype="datetime64[s]"), "between the years 1678 and 2261"),
        ([2**70, 2**70 + 1], "times beyond 2\\^63"),
    ],
)
def test_what_is_no_time_is_refused(values: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        times_of(pd.Series(values), "t")
