"""A real CFL run on digits with planted label swaps; its figures; new clients enrolled through the command line."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from shoal.data.partition.schemes import ByColumn
from shoal.data.partition.store import ensure_partition, partition_folder
from shoal.data.sets.prepare import prepare, store_folder
from shoal.data.sets.prepared import write_prepared
from shoal.engine.store.checkpoint import newest_valid
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.cfl.supervised import judge
from shoal.methods.cfl.tree import Tree
from shoal.review.pages.figures import draw_figures
from shoal.review.served.enroll import enroll, new_client
from tests.planted_groups import write_swapped

pytestmark = pytest.mark.long

CLIENTS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(home, run, partition folder): eight clients in two groups, and as many held out."""
    home = tmp_path_factory.mktemp("cfl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(home))
        for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
            patch.delenv(name, raising=False)
        from shoal.engine.settings.run_settings import make_settings

        settings = make_settings(
            {
                "method": {"name": "cfl", "criterion": "schedule", "schedule": [14]},
                "data": {"name": "swapped"},
                "partition": {"kind": "by_column", "validation": 0.2},
                "local": {"lr": 0.1, "epochs": 5, "batch": 100},
                "rounds": 18,
                "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
                "tracking": {"mlflow": False, "prefect": "off"},
                "evaluate": {"every": 6},
            }
        )
        write_swapped("swapped", clients=2 * CLIENTS)
        run = new_run(settings)
        drive(run)
        write_swapped("others", clients=24, seed=5)
        store = home / "data" / "store"
        prepared = prepare("others", store)
        scheme = ByColumn(validation=0.2)
        ensure_partition(store, prepared, scheme, limit=None, seed=5)
        return home, run, partition_folder(store, prepared, scheme, limit=None, seed=5)


def test_the_groups_are_found_and_new_clients_enrolled(made, monkeypatch):
    home, run, folder = made
    tree = Tree.from_facts(newest_valid(run).server.facts)
    assert sorted(leaf.clients for leaf in tree.leaves()) == [tuple(range(8)), tuple(range(8, 16))]
    store = home / "data" / "store"
    right = 0
    for k in range(24):
        found = enroll(run, new_client(run, f"{folder}:{k}", store, None))
        assert found.clients in (tuple(range(8)), tuple(range(8, 16)))
        assert [step.node for step in found.path] == [0, found.cluster]
        right += (found.clients[0] >= 8) == (k >= 12)
    assert right >= 23


def test_the_model_is_the_nodes_model(made, tmp_path):
    home, run, folder = made
    client = new_client(run, f"{folder}:3", home / "data" / "store", None)
    method = OpenedRun(run).method
    found = enroll(run, client, tmp_path / "model.safetensors")
    network = method.network()
    network.load_state_dict(safetensors.torch.load_file(found.model))
    assert judge(network, client.validation, method.context).accuracy == found.path[-1].accuracy


def test_the_command_enrolls_a_prepared_set(made, monkeypatch, capsys):
    from typer.testing import CliRunner

    from shoal.cli.main import app

    home, run, folder = made
    monkeypatch.setenv("SHOAL_HOME", str(home))
    monkeypatch.delenv("SHOAL_DATA_MIRROR", raising=False)
    result = CliRunner().invoke(app, ["model", "enroll", run.name, "--client", f"{folder}:20", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["clients"] == list(range(8, 16))
    assert set(found["path"][0]["similarities"]) == {"1", "2"}
    shown = CliRunner().invoke(app, ["model", "enroll", run.name, "--client", "digits"])
    assert shown.exit_code == 0, shown.output
    assert "cluster" in shown.output


def test_what_cannot_be_enrolled_is_named(made, small, monkeypatch):
    home, run, folder = made
    store = home / "data" / "store"
    with pytest.raises(RunError, match="no client 24: its clients are 0 to 23"):
        new_client(run, f"{folder}:24", store, None)
    with pytest.raises(RunError, match="vector data"):
        new_client(run, "gaussian", store, None)
    others = prepare("others", store)
    bare = replace(others.manifest, name="bare", test=0, classes=None, class_names=())
    write_prepared(store_folder(store, "bare"), bare, {"train_x": others.train_x})
    with pytest.raises(RunError, match=r"labels \(\), and the run's model tells \('0', '1', "):
        new_client(run, "bare", store, None)
    monkeypatch.setenv("SHOAL_HOME", str(home))
    other = new_run(small(rounds=1))
    with pytest.raises(RunError, match="give a run of method cfl"):
        enroll(other, new_client(run, f"{folder}:3", store, None))
    with pytest.raises(RunError, match="only runs of cfl"):
        new_client(other, "gaussian", store, None)  # before anything is said about its samples
    write_swapped("others", clients=24, seed=6)
    with pytest.raises(RunError, match="deals another version of its set"):
        new_client(run, f"{folder}:3", store, None)


def test_figures_of_a_cfl_run(made):
    _, run, _ = made
    names = {path.stem for path in draw_figures(run)}
    assert {"tree", "similarity-0"} <= names
    assert all(path.stat().st_size > 5000 for path in run.figures.glob("*.png"))


def test_checkpoints_hold_the_tree(made):
    _, run, _ = made
    server = newest_valid(run).server
    tree = Tree.from_facts(server.facts)
    assert Tree.from_facts(tree.facts()) == tree
    for node in tree.nodes[1:]:
        assert server.tensors[f"edge/{node.id}"].shape == (8, len(server.tensors["node/0"]))
    assert torch.equal(server.tensors["similarity/0"], server.tensors["similarity/0"].T)
