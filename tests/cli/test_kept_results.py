"""What a stage of dvc.yaml finds of the run that another stage kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.stages import FEDERATION, kept_name
from shoal.core.digests import file_digest
from shoal.engine.store.codec import StoreError, write_sealed


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
