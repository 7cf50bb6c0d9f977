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
    "fedpnp": "a2598707ccdadda4",
    "fedcc": "1fb5b2dd19f55dfa",
    "fedbyolcc": "ff53a3f527907b97",
    "single": "00ac7e42e744870b",
    "ncc": "961666532812dda3",
    "kmeans": "764697fecec4e9bd",
    "cfcl": "183c415825ecacea",
    "ssd": "12a37db99025438e",
    "fedsimclr": "6ca80df67b706cef",
    "fedsimclr_kmeans": "59c8b9a1a8097e18",
    "fedbyol": "a71ffb82fd40b035",
    "fedema": "20e9199191157190",
    "cfl": "d18337feeb10f8e0",
    "fedavg": "edab75a0a706c35a",
    "ifca": "2e9c43a509879ba4",
    "local_only": "ed0cb440bea713cb",
    "uifca_shared": "572d0e1dbeae1d81",
    "uifca": "6565c426311deb7a",
    "kfed": "7b9a18595787b172",
    "ifca_flows": "a984dd0e7c76f7e4",
    "clustergan": "0b54b27b27df65bb",
}
"""How the digest of each method's defaults begins: it names what a run computes."""


@pytest.mark.parametrize("method", METHODS)
def test_the_digest_of_each_methods_defaults_is_known(method: str) -> None:
    """A change of one is meant: earlier runs are no longer found as like, and kept results are of other settings."""
    digest = make_settings({"method": method}).settled(own_clients=False).digest()
    assert digest.startswith(DIGESTS[method])
