"""Nights of sets that are not images: tables and windows of tables, and vectors that an encoder made of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.data.sets.sample_files import sample_files
from shoal.engine.settings import places
from shoal.engine.store.embedded import is_stale
from shoal.lifecycle.embedding import embed
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.taking_in import NightError, TakenIn, take_in
from tests.added_sets import add_set
from tests.planted_images import write_clients, write_new
from tests.scripted_encoder import Patches, write_scripted

Make = Callable[..., Any]
NIGHT = NightSettings(watch="incoming", held_out=0.3)
SITES = ("oslo", "bergen")


def rows(count: int, seed: int, sites: tuple[str, ...] = SITES) -> pd.DataFrame:
    """Return a table of two kinds with two columns, sites in turn."""
    random = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    return pd.DataFrame(
        {
            "site": [sites[k % len(sites)] for k in range(count)],
            "kind": np.array(["calm", "storm"])[kind],
            "wind": random.normal(size=count) + 6 * kind,
            "rain": random.normal(size=count) - 6 * kind,
        }
    )


def samples(prepared: PreparedSet) -> list[tuple[str, str, str, list[float]]]:
    """Return part, client, file and values of each sample, in order."""
    files = sample_files(prepared)
    assert files is not None
    arrays = {"train": prepared.train_x, "test": prepared.test_x}
    return [
        (row.part, row.client, row.file, np.asarray(arrays[row.part][row.index]).ravel().tolist())
        for row in files.itertuples()
    ]


class Place:
    """A home with a set `mine`, a watched folder, and the settings of its nights."""

    def __init__(self, home: Path, small: Make) -> None:
        self.home = home
        self.incoming = home / "incoming"
        self.incoming.mkdir()
        self.settings = small(
            data={"name": "mine", "limit": None},
            method={"name": "fedkmeans"},
            partition={"kind": "auto", "clients": None},
            model={"clusters": 2, "encoder": None},
        )

    def set(self) -> PreparedSet:
        return open_prepared(store_folder(places.store(), "mine"), verify=True)

    def night(self, **changes: Any) -> TakenIn:
        return take_in(self.settings, NIGHT.model_copy(update=changes))

    def put(self, table: pd.DataFrame, name: str) -> Path:
        path = self.incoming / name
        if path.suffix == ".parquet":
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False)
        later = (self.set().folder / "manifest.json").stat().st_mtime + 5
        os.utime(path, (later, later))  # after the set, however coarse the clock is
        return path


@pytest.fixture
def readings(home: Path, small: Make) -> Place:
    """A set of 40 rows with labels and an own name of the column of clients."""
    place = Place(home, small)
    rows(40, 0).to_csv(home / "first.csv", index=False)
    add_set(home / "first.csv", "mine", places.store(), client_column="site", label_column="kind", test=0.2)
    return place


def test_the_rows_of_new_tables_are_appended(readings: Place) -> None:
    before = samples(readings.set())
    assert readings.night().new == 0
    readings.put(rows(30, 1, ("oslo", "tromsø")), "monday.csv")
    readings.put(rows(20, 2), "tuesday.parquet")
    taken = readings.night()
    assert (taken.new, taken.left_out) == (50, ())
    assert taken.message.startswith("50 new rows of 3 clients in ")
    grown = readings.set()
    after = samples(grown)
    for part in ("train", "test"):
        old = [each for each in before if each[0] == part]
        assert [each for each in after if each[0] == part][: len(old)] == old, "samples keep their order and part"
    new = {each[2]: each for each in after if each not in before}
    assert len(new) == 50
    table = rows(30, 1, ("oslo", "tromsø"))
    for row in range(30):
        _, client, _, values = new[f"monday.csv:{row}"]
        assert client == table["site"][row]
        assert values == pytest.approx([table["wind"][row], table["rain"][row]], rel=1e-6)
    test_count = sum(each[0] == "test" for each in new.values())
    assert 5 <= test_count <= 25, "about 0.3 of 50"
    assert grown.manifest.class_names == ("calm", "storm")
    again = readings.night()
    assert (again.new, again.digest) == (0, taken.digest)
    (readings.incoming / "monday.csv").unlink()  # what was taken may go
    assert readings.night().new == 0


def test_a_new_table_with_a_client_in_another_spelling_is_left_out(readings: Place) -> None:
    readings.put(rows(20, 1, ("3",)), "monday.csv")
    readings.put(rows(20, 3, ("03",)), "wednesday.csv")
    (reason,) = readings.night().left_out
    assert reason.startswith("wednesday.csv: clients that look alike or may be one value: '3' and '03'")
    assert readings.set().manifest.extra["clients"] == ["bergen", "oslo", "3"]


def test_bad_tables_are_left_out_and_told(readings: Place) -> None:
    before = readings.set().manifest.digest
    readings.put(rows(20, 1), "good.csv")
    readings.put(rows(20, 2).drop(columns="rain"), "narrow.csv")
    readings.put(rows(20, 1), "again.csv")
    (readings.incoming / "note.txt").write_text("hello")
    with pytest.raises(DataError, match=r"2 tables of .* cannot be used") as refused:
        readings.night(on_bad="refuse")
    assert "narrow.csv: cannot be appended to 'mine': of the set's columns it lacks rain" in str(refused.value)
    with pytest.raises(DataError, match=r"2 of 3 new files in .* cannot be used, more than 20%"):
        readings.night()
    assert readings.set().manifest.digest == before
    taken = readings.night(bad=0.7)
    assert taken.new == 20
    reasons = dict(each.split(": ", 1) for each in taken.left_out)
    assert reasons["good.csv"] == "has the same bytes as again.csv, which is taken already: leave one of them out"
    assert reasons["narrow.csv"].startswith("cannot be appended to 'mine'")
    assert "1 not a table (.csv, .csv.gz, .parquet)" in taken.message
    for path in readings.incoming.iterdir():
        os.utime(path, (1, 1))  # written before the set was
    assert readings.night().left_out == (), "they are told once"


def test_a_table_that_changed_is_not_taken_again(readings: Place) -> None:
    readings.put(rows(20, 1), "daily.csv")
    assert readings.night().new == 20
    readings.put(rows(20, 1), "daily.csv")  # written again, with the same bytes
    assert (readings.night().new, readings.night().left_out) == (0, ())
    path = readings.put(rows(30, 1), "daily.csv")
    (told,) = readings.night().left_out
    assert told.startswith("daily.csv: 'mine' has rows of daily.csv already: give the new rows, and only those")
    readings.put(rows(20, 1).drop(columns="rain"), "narrow.csv")
    os.utime(path, None)
    os.utime(readings.incoming / "narrow.csv", None)
    assert [each.split(":")[0] for each in readings.night(bad=1.0).left_out] == ["daily.csv", "narrow.csv"]
    assert readings.night().left_out == (), "they are told once, also where no other table came"


def test_rows_unlike_all_others_are_refused(readings: Place) -> None:
    strange = rows(20, 1)
    strange["wind"] += 500 * np.random.default_rng(0).normal(size=20)
    readings.put(strange, "strange.csv")
    with pytest.raises(DataError, match=r"20 new rows in .* are unlike every row that 'mine' has"):
        readings.night(strange=0.1)


def test_the_first_table_is_added_by_hand(home: Path, small: Make) -> None:
    place = Place(home, small)
    rows(20, 0).to_csv(place.incoming / "first.csv", index=False)
    with pytest.raises(
        DataError, match=r"no images yet.*of tables add the first one with `shoal data add TABLE --name mine`"
    ):
        place.night()
    assert not store_folder(places.store(), "mine").exists()


def test_arrays_are_not_watched(home: Path, small: Make) -> None:
    place = Place(home, small)
    np.savez(home / "x.npz", x=np.eye(8, dtype=np.float32), client=np.repeat(["a", "b"], 4))
    add_set(home / "x.npz", "mine", places.store())
    with pytest.raises(NightError, match="holds vectors that are not from a table"):
        place.night()


def loads(days: int, first: int) -> pd.DataFrame:
    """Return a reading an hour of two meters, one a site, from a day on."""
    hours = pd.date_range("2026-01-01", periods=24 * days, freq="h") + pd.Timedelta(days=first)
    random = np.random.default_rng(first)
    parts = [
        pd.DataFrame({"site": site, "time": hours.strftime("%Y-%m-%d %H:%M"), "load": random.normal(size=len(hours))})
        for site in SITES
    ]
    return pd.concat(parts)


def test_the_windows_of_new_and_of_grown_tables_are_appended(home: Path, small: Make) -> None:
    place = Place(home, small)
    loads(10, 0).to_csv(home / "first.csv", index=False)
    options = {"window": "24h", "time_column": "time"}
    add_set(home / "first.csv", "mine", places.store(), client_column="site", **options)
    place.put(loads(3, 10), "more.csv")
    taken = place.night()
    assert (taken.new, place.set().manifest.shape) == (6, (1, 24))
    assert taken.message.startswith("6 new windows of 2 clients in ")
    place.put(pd.concat([loads(3, 10), loads(2, 13)]), "more.csv")  # a log that grows
    assert place.night().new == 4
    assert place.night().new == 0
    assert place.set().manifest.train + place.set().manifest.test == 30


def test_overlapping_windows_have_no_held_out_part(home: Path, small: Make) -> None:
    place = Place(home, small)
    loads(10, 0).to_csv(home / "first.csv", index=False)
    options = {"window": "24h", "step": "12h", "time_column": "time"}
    add_set(home / "first.csv", "mine", places.store(), client_column="site", **options)
    place.put(loads(3, 10), "more.csv")
    with pytest.raises(DataError, match="would share samples with those to train on"):
        place.night()


def test_new_images_of_an_embedded_set_are_embedded(home: Path, small: Make) -> None:
    place = Place(home, small)
    write_scripted(home / "encoders" / "parts.pt", kind=Patches)
    write_clients(place.incoming)
    add_set(place.incoming, "pictures", places.store())
    first = embed("pictures", "file:parts.pt", "mine").prepared.manifest
    assert place.night().new == 0
    write_new(place.incoming / "north", each=2)
    write_clients(place.incoming, ("south",))
    taken = place.night()
    assert taken.new == 24
    assert "24 new images of 2 clients in " in taken.message
    assert "87 images of 'pictures' are vectors in 'mine'" in taken.message
    made = place.set()
    assert taken.digest == made.manifest.digest
    assert not is_stale(made)
    images = open_prepared(store_folder(places.store(), "pictures"))
    assert (made.manifest.train, made.manifest.test) == (images.manifest.train, images.manifest.test)
    assert made.manifest.test > 0
    assert [each["digest"] for each in made.manifest.extra["versions"]] == [first.digest]
    assert made.manifest.extra["clients"] == [*first.extra["clients"], "south"]


@pytest.mark.long
def test_vectors_of_a_built_in_set_do_not_grow(home: Path, small: Make) -> None:
    place = Place(home, small)
    write_scripted(home / "encoders" / "parts.pt", kind=Patches)
    embed("digits", "file:parts.pt", "mine")
    with pytest.raises(NightError, match="embedded from 'digits', which is no set of your own here"):
        place.night()
