from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import (
    METHOD_SECTIONS,
    PARTITION_SECTIONS,
    Settings,
    SettingsError,
    flatten,
    load_settings,
    make_settings,
    resolve,
)
from shoal.methods.registry import ADDED
from shoal.methods.registry import BUILT_IN as METHODS


def test_every_key_has_a_default() -> None:
    assert load_settings().method.name == "auto"
    settings = load_settings(overrides=["method.name=fedpnp"])
    assert settings.rounds == 10
    assert settings.local.epochs == 5
    assert settings.local.lr == 3e-4


def test_the_name_of_a_method_may_stand_behind_its_settings() -> None:
    words = ["method.name=fedkmeans", "method.min_points=5", "method.name=fedgmm"]
    assert load_settings(overrides=words).method == load_settings(overrides=[*words[2:], words[1]]).method


def test_links_are_a_list_of_pairs() -> None:
    settings = load_settings(overrides=["method.name=cfcl", "method.edges=[[0, 1], [1, 2]]"])
    assert settings.method.edges == ((0, 1), (1, 2))
    assert settings.to_json()["method"]["edges"] == [[0, 1], [1, 2]]
    with pytest.raises(SettingsError, match=r"method\.edges: there is no such setting"):
        load_settings(overrides=["method.name=fedcc", "method.edges=[]"])
    with pytest.raises(SettingsError, match=r"method\.name: 'unheard' is not known"):
        load_settings(overrides=["method.name=unheard"])


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
    assert isinstance(settings.method, METHODS[name].Settings)
    assert flatten(settings)["method.name"] == name


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.nam=fedcc"], ["method.nam: no method has such a setting", "did you mean name?"]),
        (["method.spase=plain"], ["method.spase", "no method has such a setting", "did you mean space"]),
        (["method.name=fedpnp", "method.nu=0.9"], ["method.nu", "no such setting", "mu"]),
        (["methd.mu=0.9"], ["methd", "did you mean method"]),
        (["rounds=many"], ["rounds", "'many'", "integer"]),
        (["partition.kind=dirichlet", "partition.beta=0"], ["partition.beta", "0", "greater than 0"]),
        (["partition.kind=dirchlet"], ["partition.kind", "dirichlet", "iid"]),
        (["method.name=fedfoo"], ["method.name", "fedfoo", "fedpnp"]),
        (["rounds=0"], ["rounds", "greater than or equal to 1"]),
        (["rounds"], ["--set 'rounds'", "key.path=value"]),
        (["local.lr=-1"], ["local.lr", "greater than 0"]),
        (["method.settings=[1]"], ["method.settings", "dictionary"]),
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
        "model: {clusters: 1}\ndata: {limit: 0x1}\n"
    )
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    lines = str(error.value).splitlines()
    expected = ("seed:", "data.limit:", "method.name:", "model.clusters:", "rounds:", "local.steps and", "roundz:")
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


@pytest.mark.parametrize(
    "wrong", [None, [], [[]], {}, {"a": 1}, {"name": [1]}, "x" * 300, "\x00", -1, True, float("nan")]
)
def test_any_value_in_place_of_any_setting_is_taken_or_refused_in_sentences(wrong: Any) -> None:
    whole = make_settings({"method": "cfcl"}).to_json()
    for section, values in whole.items():
        for key in values if isinstance(values, dict) else ():
            with contextlib.suppress(SettingsError):
                make_settings({**whole, section: {**values, key: wrong}})
        with contextlib.suppress(SettingsError):
            make_settings({**whole, section: wrong})


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
    assert resolve(default, own_clients=False) == named
    assert resolve(default, own_clients=False).digest() == named.digest()
    own = resolve(default, own_clients=True)
    assert (own.partition.kind, own.partition.clients) == ("by_column", 0)
    assert resolve(named, own_clients=True) == named
    few = load_settings(None, ["partition.clients=3", "partition.validation=0.1"])
    for own_clients, kind in ((False, "iid"), (True, "by_column")):
        partition = resolve(few, own_clients=own_clients).partition
        assert (partition.kind, partition.clients, partition.validation) == (kind, 3, 0.1)
    # A study may lay a scheme over settings that name none.
    assert make_settings(merge(default.to_json(), {"partition": {"kind": "dirichlet"}})).partition.clients == 5


def settings_in(section: Any) -> list[str]:
    """Return the dotted names of the settings of a section, those of sections in it included."""
    found = []
    for item in dataclasses.fields(section):
        inner = item.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            found += [f"{item.name}.{name}" for name in settings_in(inner)]
        else:
            found.append(item.name)
    return found


def test_there_are_few_settings() -> None:
    """As a reader finds them: those of all runs, of each method and of each scheme, without the two that choose one."""
    common = [name for name in settings_in(Settings) if not name.startswith(("method.", "partition."))]
    own = [
        f"{name}.{each}"
        for sections, tag in ((METHOD_SECTIONS, "name"), (PARTITION_SECTIONS, "kind"))
        for name, model in sections.items()
        if name not in ADDED.methods
        for each in settings_in(model)
        if each != tag
    ]
    assert len(common) + len(own) <= 180, [*common, *own]
    assert sum(name.startswith("workers.") for name in common) <= 9
