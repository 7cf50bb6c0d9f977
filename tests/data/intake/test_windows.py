"""Tables of time series become windows of equal length; gaps and irregular samples are told, and nothing is filled."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake.dropped_tables import dropped_tables
from shoal.data.intake.own_store import NothingNew
from shoal.data.intake.own_windows import new_windows
from shoal.data.intake.windows import INCOMPLETE, MIXED, window_rule
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.sample_files import sample_files
from tests.added_sets import add_set

HOURS = 72
FOUR = {"window": "4h", "time_column": "t"}


def hours(begin: str, count: int) -> list[str]:
    return [f"{time:%Y-%m-%d %H:%M}" for time in pd.date_range(begin, periods=count, freq="h")]


def meters(**changes: Any) -> pd.DataFrame:
    """Hourly loads of two meters of one site and one of another, from six in the morning; the value is the hour."""
    parts = []
    for site, meter, offset in (("a", "m1", 0), ("a", "m2", 100), ("b", "m1", 200)):
        times = hours("2024-03-01 06:00", HOURS)
        parts.append(pd.DataFrame({"site": site, "meter": meter, "t": times, "load": offset + np.arange(HOURS) * 1.0}))
    return pd.concat(parts, ignore_index=True).assign(**changes)


def add(folder: Path, table: pd.DataFrame, file: str = "t.csv", **options: Any) -> tuple[PreparedSet, Intake]:
    table.to_csv(folder / file, index=False)
    intake = Intake()
    if not options.keys() & {"window", "step", "append"}:
        options = {"window": "24h", "time_column": "t", "series_column": "meter", **options}
    chosen = {"client_column": "site", **options}
    return add_set(folder / file, "loads", folder / "store", intake=intake, **chosen), intake


def test_windows_begin_at_midnight_and_incomplete_ones_are_told(tmp_path: Path) -> None:
    prepared, intake = add(tmp_path, meters())
    assert (prepared.manifest.kind, prepared.manifest.shape, prepared.train_x.dtype) == ("series", (1, 24), np.float32)
    assert prepared.train_x.shape == (6, 1, 24)
    assert prepared.train_x[0, 0].tolist() == list(range(18, 42)), "midnight is 18 hours after six in the morning"
    assert prepared.train_x[4, 0, 0] == 218
    assert prepared.column("client").tolist() == [0, 0, 0, 0, 1, 1]
    assert prepared.manifest.extra["features"] == ["load"]
    assert not prepared.spec.measurements
    assert intake.left_out[INCOMPLETE]["a/m1@2024-03-01T00:00:00"] == "18 of 24 samples"
    assert intake.left_out[INCOMPLETE]["a/m1@2024-03-04T00:00:00"] == "6 of 24 samples"
    assert (intake.seen["windows"], intake.taken["windows"]) == (12, 6)


def test_overlapping_windows_of_several_channels_with_labels(tmp_path: Path) -> None:
    table = meters(heat=lambda t: -t["load"], day=lambda t: [text[:10] for text in t["t"]], note="x")
    options = {"window": "6h", "step": "3h", "time_column": "t", "series_column": "meter"}
    prepared, intake = add(tmp_path, table, **options, label_column="day")
    assert prepared.manifest.shape == (2, 6)
    assert prepared.spec.measurements
    assert np.array_equal(prepared.train_x[:, 1], -prepared.train_x[:, 0])
    assert np.unique(np.diff(prepared.train_x[:7, 0, 0])).tolist() == [3, 6], "windows over midnight have two labels"
    assert "a/m1@2024-03-01T21:00:00" in intake.left_out[MIXED]
    assert list(intake.left_out["column of text, which windows do not hold"]) == ["note"]
    with pytest.raises(DataError, match=r"windows overlap, .*share samples"):
        add(tmp_path, table, **options, label_column="day", test=0.2, force=True)


def test_gaps_are_left_out_and_not_filled(tmp_path: Path) -> None:
    table = meters()
    table.loc[30, "load"] = None
    prepared, intake = add(tmp_path, table.drop(index=[72 + 45]))
    assert prepared.train_x.shape == (4, 1, 24)
    assert intake.left_out[INCOMPLETE]["a/m1@2024-03-02T00:00:00"] == "23 of 24 samples"
    assert "a/m2@2024-03-03T00:00:00" in intake.left_out[INCOMPLETE]
    assert intake.noted["column with missing values, which are gaps"] == {"load": "1 values"}


def test_irregular_samples_are_refused(tmp_path: Path) -> None:
    table = meters()
    table.loc[10, "t"] = "2024-03-01 16:20"
    with pytest.raises(DataError, match=r"series a/m1 is irregular: its samples are 3600 seconds apart in the mean"):
        add(tmp_path, table)
    with pytest.raises(DataError, match=r"series a has two samples at 2024-03-01T06:00:00: name the series"):
        add(tmp_path, meters(), window="24h", time_column="t")


def test_a_client_with_another_rate_is_refused_by_name(tmp_path: Path) -> None:
    parts = [
        pd.DataFrame({"site": site, "t": np.arange(900) * step, "v": 1.0 * np.arange(900)})
        for site, step in (("a", 60), ("b", 60), ("slow", 59.6))
    ]
    with pytest.raises(DataError, match=r"series slow is irregular: its samples are 59\.6 apart .* exactly 60 apart"):
        add(tmp_path, pd.concat(parts), window="600", time_column="t")


@pytest.mark.parametrize(
    ("begin", "hours_of_change"),
    [("2024-03-30", 23), ("2024-10-26", 25)],
)
def test_days_are_those_of_the_time_zone_and_a_day_of_another_length_is_left_out(
    tmp_path: Path, begin: str, hours_of_change: int
) -> None:
    times = pd.date_range(begin, periods=24 * 3 + hours_of_change, freq="h", tz="Europe/Berlin")
    table = pd.DataFrame({"site": "a", "t": times, "hour": times.hour * 1.0})
    table.to_parquet(tmp_path / "t.parquet")
    intake = Intake()
    options = {"client_column": "site", "intake": intake}
    prepared = add_set(tmp_path / "t.parquet", "loads", tmp_path / "store", window="24h", time_column="t", **options)
    assert prepared.train_x[:, 0].tolist() == [[*map(float, range(24))]] * 3
    files = sample_files(prepared)
    assert files is not None
    assert files["file"][0] == f"a@{begin}T00:00:00"
    assert list(intake.left_out[INCOMPLETE].values()) == [f"{hours_of_change} of 24 samples"]


def test_times_without_a_zone_are_those_of_utc_and_the_intake_says_so(tmp_path: Path) -> None:
    _, intake = add(tmp_path, meters())
    assert intake.noted["column of times without a time zone, which are UTC"] == {"t": ""}
    offsets = meters(t=lambda t: [f"{text}+02:00" for text in t["t"]])
    prepared, intake = add(tmp_path, offsets, force=True)
    assert not intake.noted
    assert prepared.train_x[0, 0, 0] == 18, "midnight of +02:00"
    with pytest.raises(DataError, match=r"times in t have no time zone, and those of the set have UTC\+02:00"):
        add(tmp_path, meters(), append=True)


@pytest.mark.parametrize("parts", [(300, 600), (150, 350, 601)])
def test_series_in_parts_are_cut_as_in_one_piece(tmp_path: Path, parts: tuple[int, ...]) -> None:
    ticks = [round(1000 * k / 360) for k in range(900)]
    whole = pd.DataFrame({"site": "a", "t": ticks, "v": 1.0 * np.arange(900)})
    options = {"window": "100", "time_column": "t"}
    names: dict[str, list[str]] = {}
    x: dict[str, dict[str, np.ndarray]] = {}
    for kind, ends in (("whole", (900,)), ("parts", (*parts, 900))):
        (tmp_path / kind).mkdir()
        begin = 0
        for end in ends:
            (tmp_path / kind / "store").mkdir(exist_ok=True)
            first = begin == 0
            prepared, _ = add(tmp_path / kind, whole[begin:end], **options if first else {}, append=not first)
            begin = end
        files = sample_files(prepared)
        assert files is not None
        names[kind] = list(files["file"])
        x[kind] = dict(zip(names[kind], np.asarray(prepared.train_x), strict=True))
    assert set(names["parts"]) < set(names["whole"]), "windows over a seam are missing, and no other is cut"
    assert len(names["whole"]) - len(names["parts"]) <= len(parts)
    assert all(np.array_equal(x["parts"][name], x["whole"][name]) for name in names["parts"])


def test_one_false_time_costs_no_memory(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": "a", "t": [0, *(1_700_000_000 + 10 * np.arange(60))], "load": np.arange(61.0)})
    tracemalloc.start()
    prepared, _ = add(tmp_path, table, window="60", time_column="t")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert prepared.train_x.shape == (9, 1, 6)
    assert peak < 1e8


def test_times_may_be_numbers(tmp_path: Path) -> None:
    table = meters(t=[*range(HOURS), *range(HOURS), *range(HOURS)])
    prepared, _ = add(tmp_path, table, window="10", step="5", time_column="t", series_column="meter")
    assert prepared.train_x[:2, 0, 0].tolist() == [0, 5]
    with pytest.raises(DataError, match=r"--window '24h': expected a number, as the times are numbers"):
        add(tmp_path, table, force=True)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"window": "100h", "time_column": "t", "series_column": "meter"}, "no window of 100 samples is complete"),
        ({}, {"window": "90min", "time_column": "t", "series_column": "meter"}, "expected a multiple of the distance"),
        (
            {},
            {"window": "1h", "time_column": "t", "series_column": "meter"},
            "a window would hold 1: give a longer one",
        ),
        (
            {},
            {"window": "24", "time_column": "t", "series_column": "meter"},
            "--window '24': expected a duration such as",
        ),
        ({}, {"window": "soon", "time_column": "t", "series_column": "meter"}, "--window 'soon': expected a duration"),
        ({}, {"window": "24h", "series_column": "meter"}, "has no column 'time'"),
        ({}, {"step": "3h"}, "--step and --series-column are for windows: give --window"),
        ({"t": "01.03.2024"}, FOUR, r"column t holds no times \(.*01\.03\.2024.*\): expected numbers, or dates"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        add(tmp_path, meters(**changes), **options)


def test_later_samples_are_cut_as_before_and_known_windows_stay(tmp_path: Path) -> None:
    whole = meters()
    first, _ = add(tmp_path, whole[whole["t"] < "2024-03-03 06:00"])
    assert first.manifest.train == 3
    with pytest.raises(NothingNew, match="has all complete windows"):
        add(tmp_path, whole[whole["t"] < "2024-03-03 06:00"], append=True)
    with pytest.raises(DataError, match="leave --window out with --append"):
        add(tmp_path, whole, append=True, window="24h", time_column="t", series_column="meter")
    before = np.asarray(first.train_x)
    more, intake = add(tmp_path, whole, append=True)
    assert more.manifest.train == 6
    assert np.array_equal(more.train_x[:3], before)
    assert (intake.known["windows"], intake.taken["windows"]) == (3, 3)
    with pytest.raises(DataError, match="t are numbers, and those of the set dates"):
        add(tmp_path, meters(t=[*range(HOURS)] * 3), append=True)


def test_a_model_takes_new_windows_that_are_cut_as_those_of_the_set(tmp_path: Path) -> None:
    prepared, _ = add(tmp_path, meters())

    def windows(table: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
        table.to_csv(tmp_path / "new.csv", index=False)
        return new_windows(tmp_path / "new.csv", window_rule(prepared.manifest), Intake())

    x, names = windows(meters()[:HOURS])
    assert np.array_equal(x, prepared.train_x[:2])
    files = sample_files(prepared)
    assert files is not None
    assert names == list(files["file"])[:2] == ["a/m1@2024-03-02T00:00:00", "a/m1@2024-03-03T00:00:00"]
    assert windows(meters()[20:HOURS])[1] == ["a/m1@2024-03-03T00:00:00"]
    for column in ("site", "t", "meter", "load"):
        with pytest.raises(DataError, match=rf"new\.csv has no column '?{column}"):
            windows(meters().drop(columns=column))
    with pytest.raises(DataError, match=r"no window of 24 samples is complete in any of 1 series: give longer series"):
        windows(meters()[:5])


def test_tables_of_one_night_go_on_from_each_other(tmp_path: Path) -> None:
    prepared, _ = add(tmp_path, meters())
    (tmp_path / "drop").mkdir()
    later = pd.DataFrame({"site": "new", "meter": "m9", "t": hours("2024-03-01", 72), "load": 1.0 * np.arange(72)})
    for number, rows in enumerate((slice(0, 30), slice(30, 72))):
        later[rows].to_csv(tmp_path / "drop" / f"{number}.csv", index=False)
    batch = dropped_tables(tmp_path / "drop", prepared, 0.0).batch
    assert batch is not None
    assert batch.file == ["new/m9@2024-03-01T00:00:00", "new/m9@2024-03-03T00:00:00"]
