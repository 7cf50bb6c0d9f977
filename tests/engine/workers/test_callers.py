"""A run may be started from anywhere: its workers never begin the caller's program again."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import spawn
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.engine.workers.without_main import WORKER_NAME, start_without_main

PROGRAM = """
import asyncio
print("the program runs", flush=True)
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.engine.settings.run_settings import make_settings

settings = make_settings({
    "method": "kmeans", "data": {"name": "digits", "limit": 240}, "partition": {"clients": 3}, "rounds": 1,
    "workers": {"slots": 2, "runner": "RUNNER"}, "tracking": {"mlflow": False, "prefect": "off"},
})

async def cell():  # a notebook's cell is run by an event loop
    print(drive(new_run(settings)).status, flush=True)

asyncio.run(cell())
"""


def start(folder: Path, how: str, runner: str) -> subprocess.CompletedProcess[str]:
    """Start the program as a user does, in a folder of its own, with nothing set."""
    program = PROGRAM.replace("RUNNER", runner)
    (folder / "program.py").write_text(program)
    arguments = {"script": ["program.py"], "module": ["-m", "program"], "text": ["-c", program], "stdin": ["-"]}[how]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL", "PREFECT", "MLFLOW"))}
    return subprocess.run(
        [sys.executable, *arguments],
        input=program if how == "stdin" else "",
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        timeout=240,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "runner"),
    [
        ("script", "local"),
        pytest.param("stdin", "local", marks=pytest.mark.slow),
        pytest.param("module", "local", marks=pytest.mark.slow),
        pytest.param("text", "local", marks=pytest.mark.slow),
    ],
)
def test_an_unguarded_program_runs_once(tmp_path: Path, how: str, runner: str) -> None:
    if runner == "dask":
        pytest.importorskip("distributed")
    done = start(tmp_path, how, runner)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the program runs", "finished"]
    assert "Traceback" not in done.stderr, done.stderr
    assert len(list(tmp_path.glob("runs/*/settings.yaml"))) == 1


def test_the_callers_own_processes_are_started_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", __file__, raising=False)

    def told(name: str) -> bool:
        return "init_main_from_path" in spawn.get_preparation_data(name)

    mine, own = multiprocessing.current_process().name, f"{WORKER_NAME} 0"
    assert told(mine)
    start_without_main(SimpleNamespace(start=lambda: None))
    assert told(mine)
    assert not told(own)
