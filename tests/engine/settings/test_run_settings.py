from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import SettingsError, flatten, load_settings, make_settings
from shoal.methods.registry import METHODS


def test_every_key_has_a_default() -> None:
    settings = load_settings()
    assert settings.method.name == "fedpnp"
    assert settings.local.epochs == 5
    assert settings.local.lr == 3e-4


def test_a_file_of_links_stands_for_its_content(tmp_path: Path) -> None:
    path = tmp_path / "ring.txt"
    path.write_text("# a ring\n0 1\n1 2  # back\n\n2 0\n")
    settings = load_settings(overrides=["method.name=cfcl", f"method.edges={path}"])
    assert settings.method.edges == ((0, 1), (1, 2), (2, 0))
    assert settings.to_json()["method"]["edges"] == [[0, 1], [1, 2], [2, 0]]
    with pytest.raises(SettingsError, match=r"method\.edges: edge list .*gone\.txt cannot be read: No such file"):
        load_settings(overrides=["method.name=cfcl", f"method.edges={tmp_path / 'gone.txt'}"])
    with pytest.raises(SettingsError, match=r"method\.edges: edge list 'a\\nb' cannot be read"):
        load_settings(overrides=["method.name=cfcl", 'method.edges="a\\nb"'])
    with pytest.raises(SettingsError, match=r"method\.edges: there is no such setting"):
        load_settings(overrides=["method.name=fedcc", f"method.edges={path}"])
    with pytest.raises(SettingsError, match=r"method\.name: 'unheard' is not known"):
        load_settings(overrides=["method.name=unheard", f"method.edges={path}"])


def test_the_documented_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(
        """
        method:    {name: fedpnp, mu: 0.999}
        data:      {name: mnist, limit: 20000}
        partition: {kind: dirichlet, beta: 0.5, clients: 5}
        model:     {encoder: small-conv}
        rounds:    10
        local:     {epochs: 1, batch: 128}
        workers:   {runner: local, slots: auto, precision: auto}
        seed:      0
        """
    )
    settings = load_settings(path, ["local.epochs=2", "seed=7"])
    assert (settings.local.epochs, settings.seed, settings.partition.beta) == (2, 7, 0.5)
    again = make_settings(yaml.safe_load(yaml.safe_dump(settings.to_json())))
    assert again == settings
    assert again.digest() == settings.digest()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_section(name: str) -> None:
    settings = make_settings({"method": name})
    assert isinstance(settings.dataclass("method"), METHODS[name].Settings)
    assert flatten(settings)["method.name"] == name


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.nu=0.9"], ["method.nu", "no such setting", "mu"]),
        (["methd.mu=0.9"], ["methd", "did you mean method"]),
        (["rounds=many"], ["rounds", "'many'", "integer"]),
        (["partition.kind=dirichlet", "partition.beta=0"], ["partition.beta", "0", "greater than 0"]),
        (["partition.kind=dirchlet"], ["partition.kind", "dirichlet", "iid"]),
        (["method.name=fedfoo"], ["method.name", "fedfoo", "fedpnp"]),
        (["rounds=0"], ["rounds", "greater than or equal to 1"]),
        (["rounds"], ["--set 'rounds'", "key.path=value"]),
        (["local.lr=-1"], ["local.lr", "greater than 0"]),
    ],
)
def test_wrong_settings_are_named(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(None, overrides)
    for word in words:
        assert word in str(error.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("method: [")
    with pytest.raises(SettingsError, match="not YAML"):
        load_settings(broken)
    broken.write_text("- 1")
    with pytest.raises(SettingsError, match="holds a list"):
        load_settings(broken)


def test_naming_another_method_drops_the_files_keys(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("method: {name: fedpnp, mu: 0.9}\n")
    assert load_settings(path, ["method.name=fedcc"]).method.name == "fedcc"
    assert load_settings(path, ["method.name=fedpnp"]).method.mu == 0.9


def test_digest_ignores_where_it_runs() -> None:
    assert make_settings({"workers": {"slots": 2}}).digest() == make_settings({"tracking": {"mlflow": False}}).digest()
    assert make_settings({"seed": 1}).digest() != make_settings({"seed": 2}).digest()


def test_a_partition_that_is_not_named_is_settled_by_the_data() -> None:
    default, named = make_settings({}), make_settings({"partition": "iid"})
    assert default.settled(own_clients=False) == named
    assert default.settled(own_clients=False).digest() == named.digest()
    own = default.settled(own_clients=True)
    assert (own.partition.kind, own.partition.clients) == ("by_column", 0)
    assert named.settled(own_clients=True) == named
    few = load_settings(None, ["partition.clients=3", "partition.validation=0.1"])
    for own_clients, kind in ((False, "iid"), (True, "by_column")):
        partition = few.settled(own_clients).partition
        assert (partition.kind, partition.clients, partition.validation) == (kind, 3, 0.1)
    # A study may lay a scheme over settings that name none.
    assert make_settings(merge(default.to_json(), {"partition": {"kind": "dirichlet"}})).partition.clients == 5


DIGESTS = {
    "fedpnp": "4cca85085151e682",
    "fedcc": "20e6d6c5c48f0188",
    "fedbyolcc": "5319af1770dd5428",
    "single": "abf8115db0458a52",
    "ncc": "7526a4ca28b0d4d0",
    "kmeans": "8e688d893620a87b",
    "cfcl": "bc0e25fbaadb5ba1",
    "ssd": "932c91a3d0f09be2",
    "fedsimclr": "9591bd4b8c6e285d",
    "fedsimclr_kmeans": "7f7dd7069e2c812b",
    "fedbyol": "407a4aff4b60ec90",
    "fedema": "7c25836005a484f0",
    "cfl": "210d34e52e5a3406",
    "fedavg": "4561b3d716e9cb87",
    "ifca": "14c5874849378327",
    "local_only": "cb75f8b05162f39c",
    "uifca_shared": "de94fe2fc330348f",
    "uifca": "6c65d25a6dfdd890",
    "kfed": "440ece8eff31cc7b",
    "ifca_flows": "1e4eb33b7aff030d",
    "clustergan": "931a95537e642e40",
}
"""How the digest of each method's defaults begins: it names what a run computes."""


@pytest.mark.parametrize("method", METHODS)
def test_the_digest_of_each_methods_defaults_is_known(method: str) -> None:
    """A change of one is meant: earlier runs are no longer found as like, and kept results are of other settings."""
    digest = make_settings({"method": method}).settled(own_clients=False).digest()
    assert digest.startswith(DIGESTS[method])
