"""What Prefect's form makes of the parameters of a flow: a list of methods, each with its settings."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from shoal.engine.settings.run_settings import METHOD_SECTIONS, PARTITION_SECTIONS, make_settings
from shoal.flows.nightly import nightly
from tests.flows.test_prefect import ROOT

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def definitions() -> Schema:
    return parameter_schema(nightly).model_dump()["definitions"]


def members(definitions: Schema, section: str) -> list[Schema]:
    """The entries of the list that the form offers for a section."""
    union = definitions["Settings"]["properties"][section]
    assert "oneOf" not in union
    return [definitions[each["$ref"].rsplit("/", 1)[-1]] for each in union["anyOf"]]


def shown(entries: list[Schema], value: Schema) -> str:
    """The entry that the form shows for a value: the first one with most of its keys, as Prefect's page finds it."""
    common = [len(value.keys() & entry["properties"].keys()) for entry in entries]
    return entries[common.index(max(common))]["title"]


def test_methods_and_partitions_are_lists_by_their_names(definitions: Schema) -> None:
    assert {entry["title"] for entry in members(definitions, "method")} == set(METHOD_SECTIONS)
    kinds = {entry["properties"]["kind"]["const"] for entry in members(definitions, "partition")}
    assert kinds == set(PARTITION_SECTIONS)
    fedpnp = next(entry for entry in members(definitions, "method") if entry["title"] == "fedpnp")
    assert fedpnp["properties"]["mu"]["description"]
    assert fedpnp["properties"]["name"]["const"] == "fedpnp"


def test_the_form_shows_the_method_whose_settings_are_given(definitions: Schema) -> None:
    entries = members(definitions, "method")
    alike: dict[frozenset[str], list[str]] = {}
    for entry in entries:
        alike.setdefault(frozenset(entry["properties"]), []).append(entry["title"])
    for names in alike.values():
        for name in names:  # methods with the same settings cannot be told apart by them
            value = make_settings({"method": name}).to_json()["method"]
            assert shown(entries, value) in names, name


def test_the_form_of_the_nightly_deployment_shows_its_method(definitions: Schema) -> None:
    project = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    (deployment,) = (each for each in project["deployments"] if each["name"] == "nightly")
    method = deployment["parameters"]["settings"]["method"]
    assert shown(members(definitions, "method"), method) == method["name"]
