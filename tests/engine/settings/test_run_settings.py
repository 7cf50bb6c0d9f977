from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import (
    PARTITIONS,
    SOURCES,
    Settings,
    SettingsError,
    flatten,
    load_settings,
    make_settings,
)
from shoal.engine.settings.sections import Section
from shoal.methods.registry import METHODS


def test_every_key_has_a_default() -> None:
    assert load_settings().method.name == "auto"
    settings = load_settings(overrides=["method.name=fedpnp"])
    assert settings.rounds == 10
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
        (["method.spheer=true"], ["method.spheer", "no such setting of any method", "did you mean sphere"]),
        (["method.name=fedpnp", "method.nu=0.9"], ["method.nu", "no such setting", "mu"]),
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


def test_all_errors_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "method: {name: fedcp}\nseed: 1:30\nrounds: 0\nroundz: 3\nlocal: {epochs: 2, steps: 3}\n"
        "model: {clusters: 1}\ndata: {limit: 0100}\n"
    )
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    lines = str(error.value).splitlines()
    expected = ("seed,", "data.limit,", "method.name:", "model.clusters:", "rounds:", "local.steps and", "roundz:")
    assert sorted(line.split(" ")[0] for line in lines) == sorted(word.split(" ")[0] for word in expected)


def test_one_word_stands_for_a_section_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("data: mine\nmethod: fedcc\npartition: iid\n")
    short = load_settings(path, ["data.limit=100"])
    long = make_settings({"data": {"name": "mine", "limit": 100}, "method": {"name": "fedcc"}, "partition": "iid"})
    assert short == long
    assert load_settings(path, ["data=other"]).data.name == "other"
    path.write_text("data: 007\n")
    assert load_settings(path).data.name == "007"
    assert load_settings(path, changes={"data": {"limit": 9}}).data.name == "007"


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
    "fedpnp": "ba687f913d784e22",
    "fedcc": "e28bf3bb08d25a79",
    "fedbyolcc": "068d46f09191f991",
    "single": "e2075f785b081243",
    "ncc": "e118a8b10da77f44",
    "kmeans": "f5e51259bf579aed",
    "cfcl": "217f595348e7389c",
    "ssd": "82986bc8ecef8354",
    "fedsimclr": "5ba52c02d7f7d5b9",
    "fedsimclr_kmeans": "796eec22df9397a3",
    "fedbyol": "aba308755dd8759a",
    "fedema": "4bcab0c8e1cc4f15",
    "fedx": "77ca887d17bbc86b",
    "fedu2": "98ada87a48fc0b68",
    "cfl": "1b41b22f63f35da3",
    "fedavg": "124d1d053849b795",
    "ifca": "bb4af80ef9acb48f",
    "local_only": "b2e62e7465efa82a",
    "uifca_shared": "c75af08e2d892a24",
    "uifca": "fc5287022cd969d0",
    "kfed": "984c6bbb148373bc",
    "ifca_flows": "162ec6f0536a9b83",
    "fedkmeans": "964ce0f68e552de9",
    "fedgmm": "76213a735d13b964",
    "clustergan": "bcd47862574ee4bf",
}
"""How the digest of each method's defaults begins: it names what a run computes."""


@pytest.mark.parametrize("method", METHODS)
def test_the_digest_of_each_methods_defaults_is_known(method: str) -> None:
    """A change of one is meant: earlier runs are no longer found as like, and kept results are of other settings."""
    digest = make_settings({"method": method}).settled(own_clients=False).digest()
    assert digest.startswith(DIGESTS[method])


def declared(source: type) -> set[tuple[str, str]]:
    """Return the settings of a dataclass as (class that declares it, name), those of dataclasses in it included."""
    hints = get_type_hints(source)
    names = {item.name for item in dataclasses.fields(source)}
    found: set[tuple[str, str]] = set()
    for parent in source.__mro__:
        for name in names & inspect.get_annotations(parent).keys():
            nested: Any = hints[name]
            found |= declared(nested) if dataclasses.is_dataclass(nested) else {(parent.__qualname__, name)}
    return found


def test_there_are_few_settings() -> None:
    """A setting that several methods or schemes inherit from one class counts once."""
    sources = [*(method.Settings for method in METHODS.values()), *PARTITIONS.values(), *SOURCES.values()]
    found = set().union(*map(declared, sources))
    for key, field in Settings.model_fields.items():
        kind = field.annotation
        if not isinstance(kind, type) or not issubclass(kind, Section):
            found |= {("Settings", key)} - {("Settings", "method"), ("Settings", "partition")}
        elif key not in SOURCES:
            found |= {(key, name) for name in kind.model_fields}
    assert len(found) <= 250, sorted(found)
    assert sum(group == "workers" for group, _ in found) <= 13
