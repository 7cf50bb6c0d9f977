"""A run on an own set: a worker's client reads its own folder, compared with the manifest when it is first opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.prepared import Manifest, PreparedSet
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store import opened_run
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from tests.added_sets import add_set

CLIENTS = 3


@pytest.fixture
def mine(home: Path) -> PreparedSet:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 4)), columns=list("uvwx")).assign(client=np.arange(60) % CLIENTS)
    frame.to_csv(home / "t.csv", index=False)
    return add_set(home / "t.csv", "mine", places.store())


def settings(rounds: int = 3):
    return make_settings(
        {
            "method": {"name": "fedkmeans"},
            "data": {"name": "mine"},
            "model": {"clusters": 3},
            "rounds": rounds,
            "workers": {"slots": 1, "device": "cpu"},
            "tracking": {"mlflow": False, "prefect": "off"},
        }
    )


def folder_of(mine: PreparedSet, client: int) -> Path:
    return mine.folder / "clients" / f"{client:04d}"


def damage(folder: Path) -> None:
    """Change the last byte of the samples."""
    raw = bytearray((folder / "train_x.npy").read_bytes())
    raw[-1] ^= 1
    (folder / "train_x.npy").write_bytes(raw)


def test_a_client_trains_though_the_files_of_the_others_are_damaged(mine: PreparedSet) -> None:
    run = new_run(settings())
    for other in (0, 2):
        damage(folder_of(mine, other))
    opened = OpenedRun(run, working=True)
    server = opened.method.init_server(opened.federation)
    client = opened.client(ClientFiles(1), 1)
    update = opened.method.client_update(opened.method.broadcast(server, 1), client)
    assert update.message.tensors["samples"] == 20
    for other in (0, 2):
        with pytest.raises(DataError, match="is not the file that its manifest describes"):
            opened.client(ClientFiles(other), 1).train.x()
    with pytest.raises(DataError):
        opened.evaluation(1, final=True).train.x()


def test_a_run_on_own_clients_ends_with_every_sample_in_a_cluster(mine: PreparedSet) -> None:
    run = new_run(settings(9))
    drive(run)
    table = pd.read_parquet(RunFolder(run.path).path / "clusters.parquet")
    assert len(table) == 60
    assert table["file"].tolist() == [f"t.csv:{k}" for k in range(60)]
    assert table["client_name"].tolist() == [str(k % CLIENTS) for k in range(60)]


def test_a_clients_file_is_compared_when_it_is_first_opened(mine: PreparedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(settings())
    compared: list[str] = []
    real = opened_run.check_file

    def noted(folder: Path, manifest: Manifest, name: str) -> None:
        compared.append(name)
        real(folder, manifest, name)

    monkeypatch.setattr(opened_run, "check_file", noted)
    opened = OpenedRun(run)
    for _ in range(2):
        opened.samples(1).x()
    assert compared == ["clients/0001/train_x.npy"]
    damage(folder_of(mine, 1))
    with pytest.raises(DataError, match="is not the file that its manifest describes"):
        OpenedRun(run).samples(1).x()
