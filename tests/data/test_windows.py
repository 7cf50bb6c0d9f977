"""Tables of time series become windows of equal length; gaps and irregular samples are told, and nothing is filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.intake import Intake
from shoal.data.own import add_table
from shoal.data.own_images import NothingNew
from shoal.data.own_windows import new_windows, rule_of
from shoal.data.prepared import Prepared
from shoal.data.windows import EDGE, GAP, MIXED, WindowOptions

HOURS = 72
FOUR = WindowOptions("4h", time_column="t")


def hours(begin: str, count: int) -> list[str]:
    return [f"{time:%Y-%m-%d %H:%M}" for time in pd.date_range(begin, periods=count, freq="h")]


def meters(**changes: Any) -> pd.DataFrame:
    """Hourly loads of two meters of one site and one of another, from six in the morning; the value is the hour."""
    parts = []
    for site, meter, offset in (("a", "m1", 0), ("a", "m2", 100), ("b", "m1", 200)):
        times = hours("2024-03-01 06:00", HOURS)
        parts.append(pd.DataFrame({"site": site, "meter": meter, "t": times, "load": offset + np.arange(HOURS) * 1.0}))
    return pd.concat(parts, ignore_index=True).assign(**changes)


def add(folder: Path, table: pd.DataFrame, file: str = "t.csv", **options: Any) -> tuple[Prepared, Intake]:
    table.to_csv(folder / file, index=False)
    intake = Intake()
    chosen = {
        "client_column": "site",
        "windows": WindowOptions("24h", time_column="t", series_column="meter"),
        **options,
    }
    return add_table(folder / file, "loads", folder / "store", intake=intake, **chosen), intake


def test_windows_begin_at_midnight_and_incomplete_ones_are_told(tmp_path: Path) -> None:
    prepared, intake = add(tmp_path, meters())
    assert (prepared.manifest.kind, prepared.manifest.shape, prepared.train_x.dtype) == ("series", (1, 24), np.float32)
    assert prepared.train_x.shape == (6, 1, 24)
    assert prepared.train_x[0, 0].tolist() == list(range(18, 42)), "midnight is 18 hours after six in the morning"
    assert prepared.train_x[4, 0, 0] == 218
    assert prepared.column("client").tolist() == [0, 0, 0, 0, 1, 1]
    assert prepared.manifest.extra["features"] == ["load"]
    assert not prepared.spec.measurements
    assert intake.left_out[EDGE]["a/m1@2024-03-01T00:00"] == "18 of 24 samples"
    assert intake.left_out[EDGE]["a/m1@2024-03-04T00:00"] == "6 of 24 samples"
    assert (intake.seen["windows"], intake.taken["windows"]) == (12, 6)


def test_overlapping_windows_of_several_channels_with_labels(tmp_path: Path) -> None:
    table = meters(heat=lambda t: -t["load"], day=lambda t: [text[:10] for text in t["t"]], note="x")
    options = WindowOptions("6h", step="3h", time_column="T", series_column="meter")
    prepared, intake = add(tmp_path, table, windows=options, label_column="day")
    assert prepared.manifest.shape == (2, 6)
    assert prepared.spec.measurements
    assert np.array_equal(prepared.train_x[:, 1], -prepared.train_x[:, 0])
    assert np.unique(np.diff(prepared.train_x[:7, 0, 0])).tolist() == [3, 6], "windows over midnight have two labels"
    assert "a/m1@2024-03-01T21:00" in intake.left_out[MIXED]
    assert list(intake.left_out["column of text, which windows do not hold"]) == ["note"]
    with pytest.raises(DataError, match=r"windows of 6 samples begin every 3, .*share samples"):
        add(tmp_path, table, windows=options, label_column="day", test=0.2, force=True)


def test_gaps_are_left_out_and_not_filled(tmp_path: Path) -> None:
    table = meters()
    table.loc[30, "load"] = None
    prepared, intake = add(tmp_path, table.drop(index=[72 + 45]))
    assert prepared.train_x.shape == (4, 1, 24)
    assert list(intake.left_out[GAP]) == ["a/m1@2024-03-02T00:00", "a/m2@2024-03-03T00:00"]
    assert intake.noted["column with missing values, which are gaps"] == {"load": "1 values"}


def test_irregular_samples_are_refused_or_averaged(tmp_path: Path) -> None:
    table = meters()
    table.loc[10, "t"] = "2024-03-01 16:20"
    with pytest.raises(
        DataError, match=r"series a/m1 is irregular: its samples are 2400 to 4800 seconds apart, and most"
    ):
        add(tmp_path, table)
    averaged = WindowOptions("24h", every="2h", time_column="t", series_column="meter")
    prepared, intake = add(tmp_path, table, windows=averaged)
    assert prepared.train_x.shape == (6, 1, 12)
    assert prepared.train_x[0, 0].tolist() == [18.5 + 2 * k for k in range(12)]
    assert intake.adapted["samples averaged over --every"]["a/m1"] == "72 samples to 36"
    with pytest.raises(DataError, match=r"series a has two samples at 2024-03-01T06:00: name the series"):
        add(tmp_path, meters(), windows=WindowOptions("24h", time_column="t"), force=True)


def test_times_may_be_numbers(tmp_path: Path) -> None:
    table = meters(t=[*range(HOURS), *range(HOURS), *range(HOURS)])
    prepared, _ = add(tmp_path, table, windows=WindowOptions("10", step="5", time_column="t", series_column="meter"))
    assert prepared.train_x[:2, 0, 0].tolist() == [0, 5]
    with pytest.raises(DataError, match=r"--window '24h': expected a number, as the times are numbers"):
        add(tmp_path, table, force=True)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, WindowOptions("100h", time_column="t", series_column="meter"), "no window of 100 samples is complete"),
        ({}, WindowOptions("90min", time_column="t", series_column="meter"), "expected a multiple of the distance"),
        ({}, WindowOptions("1h", time_column="t", series_column="meter"), "a window would hold 1: give a longer one"),
        ({}, WindowOptions("24", time_column="t", series_column="meter"), "--window '24': expected a duration such as"),
        ({}, WindowOptions("soon", time_column="t", series_column="meter"), "--window 'soon': expected a duration"),
        ({}, WindowOptions("24h", series_column="meter"), "has no column 'time'"),
        ({}, WindowOptions(step="3h"), "--step, --every and --series-column are for windows: give --window"),
        ({"t": "01.03.2024"}, FOUR, r"column t: '01.03.2024' in rows 0, 1, .* is no time: expected numbers, or dates"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], options: WindowOptions, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        add(tmp_path, meters(**changes), windows=options)


def test_later_samples_are_cut_as_before_and_known_windows_stay(tmp_path: Path) -> None:
    whole = meters()
    first, _ = add(tmp_path, whole[whole["t"] < "2024-03-03 06:00"])
    assert first.manifest.train == 3
    with pytest.raises(NothingNew, match="has all complete windows"):
        add(tmp_path, whole[whole["t"] < "2024-03-03 06:00"], windows=WindowOptions(), append=True)
    with pytest.raises(DataError, match="leave --window out with --append"):
        add(tmp_path, whole, append=True)
    before = np.asarray(first.train_x)
    more, intake = add(tmp_path, whole, windows=WindowOptions(), append=True)
    assert more.manifest.train == 6
    assert np.array_equal(more.train_x[:3], before)
    assert (intake.known["windows"], intake.taken["windows"]) == (3, 3)
    with pytest.raises(DataError, match="t are numbers, and those of the set dates"):
        add(tmp_path, meters(t=[*range(HOURS)] * 3), windows=WindowOptions(), append=True)


def test_a_model_takes_new_windows_without_their_clients(tmp_path: Path) -> None:
    prepared, _ = add(tmp_path, meters())
    new = meters().drop(columns="site")[:HOURS]
    intake = Intake()
    x, names = new_windows(new, rule_of(prepared), Path("new.csv"), intake)
    assert np.array_equal(x, prepared.train_x[:2])
    assert names == ["m1@2024-03-02T00:00", "m1@2024-03-03T00:00"]
    with pytest.raises(DataError, match=r"new\.csv lacks columns of the set's windows: load"):
        new_windows(new.drop(columns="load"), rule_of(prepared), Path("new.csv"), Intake())
    with pytest.raises(DataError, match=r"no window of 24 samples is complete in any of 1 series: give longer series"):
        new_windows(new[:5], rule_of(prepared), Path("new.csv"), Intake())
