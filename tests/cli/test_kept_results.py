"""What a stage of dvc.yaml finds of the run that another stage kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from shoal.cli.stages import FEDERATION, federate, kept_name, partition, prepare
from shoal.core.digests import file_digest
from shoal.engine.settings.run_settings import load_settings
from shoal.engine.store.codec import StoreError, write_sealed
from shoal.lifecycle.starting import new_run
from tests.conftest import SMALL


def test_another_record_in_place_of_a_result_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FEDERATION.mkdir(parents=True)
    (FEDERATION / "events.jsonl").write_text("kept")
    files = {"events.jsonl": file_digest(FEDERATION / "events.jsonl")}
    write_sealed(FEDERATION / "result.json", {"run": "/elsewhere/runs/seven", "files": files})
    assert kept_name() == "seven"
    (FEDERATION / "events.jsonl").write_text("those of another run")
    with pytest.raises(StoreError, match=r"events\.jsonl .*make it again"):
        kept_name()
    write_sealed(FEDERATION / "result.json", {"round": 7})
    with pytest.raises(StoreError, match=r"result\.json is not the result of a run: make it again"):
        kept_name()


def test_the_newest_unfinished_run_on_the_present_data_is_resumed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    params = home / "params.yaml"
    params.write_text(yaml.safe_dump({**SMALL, "rounds": 1}))
    prepare(params=params)
    partition(params)
    cut, finished, older = (new_run(load_settings(params)) for _ in range(3))
    finished.set_finished(1, "0" * 64)
    older.set_lineage(data=replace(older.lineage().data, digest="0" * 64))
    federate(params)
    assert kept_name() == cut.name
