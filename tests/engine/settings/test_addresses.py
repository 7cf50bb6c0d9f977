"""Passwords and tokens of addresses: refused in settings, read from the environment, and written nowhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings.addresses import ADDRESS_SCHEMA, AddressError, fill_variables, masked, without_user
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.tracking import report_trouble, shown_uri, tracking_uri
from shoal.review.pages.report import write_report

Make = Callable[..., Any]
SECRETS = [
    ("https://me:word@host/x", "https://me:***@host/x"),
    ("postgresql://me:w/o:rd@host:5432/db", "postgresql://me:***@host:5432/db"),
    ("s3://key:word@bucket/shoal", "s3://key:***@bucket/shoal"),
    ("https://word@host", "https://***@host"),
    ("https://host/x?token=word&a=1", "https://host/x?token=***&a=1"),
    ("az://box/x?sig=word", "az://box/x?sig=***"),
    ("simplecache::https://me:word@host/x", "simplecache::https://me:***@host/x"),
]
HARMLESS = [
    "https://host:5000/a@b",
    "sftp://me@host/x",
    "sqlite:////home/a@b/mlflow.db",
    "tcp://127.0.0.1:8786",
    "https://me:${WORD}@host/x?token=${TOKEN}",
    "file:///mnt/shared",
    "databricks",
]


@pytest.mark.parametrize(("address", "shown"), SECRETS)
def test_secrets_are_masked_and_refused(small: Make, address: str, shown: str) -> None:
    assert masked(address) == shown
    assert masked(f"cannot reach '{address}', sorry") == f"cannot reach '{shown}', sorry"
    for changes in (
        {"tracking": {"uri": address}},
        {"workers": {"runner": "dask", "address": address}},
    ):
        with pytest.raises(SettingsError, match=r"contains a password or token.*write \$\{NAME\}") as refused:
            small(**changes)
        assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize("address", HARMLESS)
def test_what_is_no_secret_stays(small: Make, address: str) -> None:
    assert masked(address) == address
    assert small(tracking={"uri": address}).tracking.uri == address
    assert re.search(ADDRESS_SCHEMA["pattern"], address)


def test_the_schema_refuses_passwords_before_prefect_keeps_them() -> None:
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import is_valid

    from shoal.flows.pipeline import pipeline

    schema = parameter_schema(pipeline).model_dump()

    def fits(uri: str) -> bool:
        return is_valid({"settings": {"tracking": {"uri": uri}}}, schema)

    assert all(fits(address) for address in HARMLESS)
    assert not [address for address, _ in SECRETS if ":word@" in address and fits(address)]


def test_variables_are_replaced_where_an_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://me:${WORD}@${HOST_NAME}/${FOLDER}"
    monkeypatch.setenv("WORD", "p@ss/w")
    monkeypatch.setenv("HOST_NAME", "host:5000")
    monkeypatch.setenv("FOLDER", "a/b")
    assert fill_variables(address, "tracking.uri") == "https://me:p%40ss%2Fw@host:5000/a/b"
    assert masked("bad p@ss/w, p%40ss%2Fw", address) == "bad ${WORD}, ${WORD}"
    assert without_user(fill_variables(address, "tracking.uri")) == "https://host:5000/a/b"
    monkeypatch.delenv("WORD")
    with pytest.raises(AddressError, match=r"tracking\.uri names the environment variable WORD, which is not set"):
        fill_variables(address, "tracking.uri")


def written(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.long
def test_a_password_reaches_no_file_of_a_run(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "Tr0ub4dor")
    tracking = {"mlflow": True, "model": False, "uri": "http://me:${HIDDEN}@127.0.0.1:9"}
    run = new_run(small(rounds=1, tracking=tracking))
    assert drive(run).status == "finished"
    assert any(event.kind == "mlflow_incomplete" and "127.0.0.1:9" in event.message for event in run.events())
    run.set_tracking(mlflow_uri="http://me:0lderW0rd@127.0.0.1:9")
    run.event("x", message="no answer from http://me:Tr0ub4dor@127.0.0.1:9/api")
    run.set_status("finished", 1, "http://me:Tr0ub4dor@h")
    write_report(run)
    assert b"Tr0ub4dor" not in written(home)
    assert b"0lderW0rd" not in (run.path / "report.html").read_bytes()
    # Where the variable is gone the run goes on all the same, and says which one it is.
    monkeypatch.delenv("HIDDEN")
    drive(RunFolder(run.path))
    assert any("HIDDEN, which is not set" in event.message for event in run.events())


def test_the_password_of_the_environments_address_is_masked(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:Tr0ub4dor@127.0.0.1:9")
    run = new_run(small())
    report_trouble(run, OSError("no route to http://me:Tr0ub4dor@127.0.0.1:9/api"))
    assert tracking_uri(run.settings()) == "http://me:Tr0ub4dor@127.0.0.1:9"
    assert shown_uri(run.settings()) == "http://me:***@127.0.0.1:9"
    assert "MLflow at http://me:***@127.0.0.1:9 does not have all of the run" in run.events()[-1].message
    assert b"Tr0ub4dor" not in written(home)


@pytest.mark.long
def test_a_store_named_through_a_variable(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", str(home / "elsewhere"))
    (home / "elsewhere").mkdir()
    uri = "sqlite:///${WHERE}/m.db"
    run = new_run(small(rounds=1, tracking={"mlflow": True, "model": False, "uri": uri}))
    drive(run)
    drive(RunFolder(run.path))  # the same MLflow run again
    client = MlflowClient(f"sqlite:///{home}/elsewhere/m.db")
    experiment = client.get_experiment_by_name("shoal")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["tracking.uri"] == uri
    assert run.status().tracking.mlflow_uri == uri
