"""`shoal study` says how an interrupted study continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal_research import runner
from shoal_research.commands.study import study


def test_an_interrupted_study_says_how_it_continues(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_study", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study("fedpnp-table1")
    assert "interrupted; the same command resumes the study" in capsys.readouterr().err
