import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import PartitionError
from shoal.data.partition import store as store_module
from shoal.data.partition.make import GROUPS, make_partition
from shoal.data.partition.schemes import IID, Dirichlet
from shoal.data.partition.store import ensure_partition, partition_folder, write_partition
from shoal.data.partition.summary import label_counts, summary
from shoal.data.partition.table import load_partition, save_partition

SCHEME = IID(clients=4, validation=0.2)


@pytest.fixture
def saved(digits, tmp_path):
    partition = make_partition(SCHEME, digits, limit=300, seed=4)
    save_partition(partition, tmp_path / "p")
    return partition, tmp_path / "p"


def test_parquet_round_trip(saved):
    partition, folder = saved
    loaded = load_partition(folder)
    for name in ("sample", "client", "validation"):
        assert np.array_equal(getattr(loaded, name), getattr(partition, name))
    for name in ("data", "data_digest", "clients", "truth", "digest", "settings"):
        assert getattr(loaded, name) == getattr(partition, name)
    table = pd.read_parquet(folder / "partition.parquet")
    assert list(table.columns) == ["sample", "client", "split"]


def test_no_sample_is_dealt_twice(saved, tmp_path):
    partition, _ = saved
    twice = partition.sample.copy()
    twice[1] = twice[0]
    save_partition(replace(partition, sample=twice), tmp_path / "twice")
    with pytest.raises(PartitionError, match="it names a sample twice"):
        load_partition(tmp_path / "twice")


@pytest.mark.parametrize("column", ["sample", "client", "split"])
def test_a_changed_table_is_detected(saved, column):
    _, folder = saved
    table = pd.read_parquet(folder / "partition.parquet")
    old = table.loc[0, column]
    table.loc[0, column] = "validation" if old == "train" else "train" if column == "split" else old + 1
    table.to_parquet(folder / "partition.parquet", index=False)
    with pytest.raises(PartitionError, match="not the one its manifest describes"):
        load_partition(folder)


def test_broken_partitions(saved, tmp_path):
    _, folder = saved
    parquet = folder / "partition.parquet"
    parquet.write_bytes(parquet.read_bytes()[:-50])
    with pytest.raises(PartitionError, match="cannot be read"):
        load_partition(folder)
    (folder / "partition.json").write_text("{}")
    with pytest.raises(PartitionError, match="cannot be read"):
        load_partition(folder)
    with pytest.raises(PartitionError, match=r"partition\.json is missing"):
        load_partition(tmp_path / "nowhere")


def test_folder_names(digits, tmp_path):
    folder = partition_folder(tmp_path, digits, IID(), None, 0)
    assert folder.parent == tmp_path / "partitions"
    assert folder.name.startswith("digits-iid-")
    variants = [(IID(), None, 1), (IID(), 100, 0), (IID(clients=4), None, 0), (Dirichlet(), None, 0)]
    assert len({folder, *(partition_folder(tmp_path, digits, *variant) for variant in variants)}) == 5


def test_partitions_are_made_once(digits, tmp_path, monkeypatch):
    made = ensure_partition(tmp_path, digits, SCHEME, limit=300, seed=4)
    folder = partition_folder(tmp_path, digits, SCHEME, 300, 4)
    assert sorted(p.name for p in folder.iterdir()) == ["partition.json", "partition.parquet", "summary.csv"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    monkeypatch.setattr(store_module, "make_partition", lambda *_, **__: pytest.fail("made again"))
    assert ensure_partition(tmp_path, digits, SCHEME, limit=300, seed=4).digest == made.digest


def test_a_partition_of_other_data_or_a_changed_one_is_made_again(digits, tmp_path):
    made = ensure_partition(tmp_path, digits, IID())
    folder = partition_folder(tmp_path, digits, IID(), None, 0)
    about = json.loads((folder / "partition.json").read_text())
    for change in ({"data_digest": "0" * 64}, {"digest": "0" * 64}):
        (folder / "partition.json").write_text(json.dumps({**about, **change}))
        assert ensure_partition(tmp_path, digits, IID()).digest == made.digest
        assert load_partition(folder).digest == made.digest


def test_failed_writing_leaves_nothing(digits, tmp_path, monkeypatch):
    partition = make_partition(IID(), digits)
    monkeypatch.setattr(store_module, "summary", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_partition(partition, digits, tmp_path / "partitions" / "p")
    assert list((tmp_path / "partitions").iterdir()) == []


def test_summary(digits, saved):
    partition, _ = saved
    table = summary(partition, digits)
    labels = [f"label_{k}" for k in range(10)]
    assert list(table.columns) == ["client", "train", "validation", *labels]
    assert (table["train"] + table["validation"]).tolist() == table[labels].sum(axis=1).tolist()
    counts = label_counts(partition, digits)
    assert counts.shape == (10, 4)
    assert counts.sum() == len(partition.sample)


def test_summary_of_natural_clients_without_labels(build):
    from shoal.data.partition.schemes import ByColumn

    data = build(20, clients=["a", "b"] * 10)
    partition = make_partition(ByColumn(), data)
    table = summary(partition, data)
    assert list(table.columns) == ["client", "name", "train", "validation"]
    assert table["name"].tolist() == ["a", "b"]
    assert label_counts(partition, data).shape == (0, 2)
    about = replace(data.manifest, extra={**data.manifest.extra, GROUPS: {"b": 0, "a": 1}})
    partition = make_partition(ByColumn(), replace(data, manifest=about))
    assert partition.truth == (1, 0)
    assert summary(partition, data)["group"].tolist() == [1, 0]


def test_pooled_keeps_samples(saved):
    partition, _ = saved
    pooled = partition.pooled()
    assert pooled.clients == 1
    assert pooled.counts().tolist() == [partition.counts().sum()]
    assert sorted(pooled.sample) == sorted(partition.sample)
