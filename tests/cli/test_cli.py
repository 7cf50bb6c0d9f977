"""The command line as its user meets it: exit codes, one clear message, JSON alone on standard output."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import SMALL


def shoal(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SHOAL_HOME": str(home)}
    command = [sys.executable, "-m", "shoal.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=home, timeout=240)


@pytest.fixture
def settings_file(home: Path) -> Path:
    path = home / "settings.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "rounds": 2}))
    return path


@pytest.mark.long
def test_run_compare_and_resume(home: Path, settings_file: Path) -> None:
    home = settings_file.parent / "proj[old]"
    home.mkdir()
    first = shoal(home, "run", str(settings_file), "--json")
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert f"run {result['run']}" in first.stderr.replace("\n", "")
    assert set(result) >= {"run", "status", "rounds", "metrics", "bytes", "seconds", "mlflow_run", "weights_sha256"}
    assert (result["status"], result["rounds"]) == ("finished", 2)
    assert set(result["bytes"]) == {"up", "down", "d2d"}
    again = json.loads(shoal(home, "run", "--resume", "latest", "--json").stdout)
    assert again["weights_sha256"] == result["weights_sha256"]
    (compared,) = json.loads(shoal(home, "compare", "latest", "--json").stdout)
    assert compared["metrics"] == result["metrics"]
    shown = shoal(home, "compare", "latest").stdout
    assert "…" not in shown
    assert compared["run"].rsplit("/", 1)[1] in shown
    assert f"{result['metrics']['acc']:.3f}" in shown


@pytest.mark.long
def test_a_command_that_fails_leaves_no_process(home: Path) -> None:
    """Worker processes are prepared while settings are read."""
    command = [sys.executable, "-m", "shoal.cli.main", "run", "--set", "method.nu=1"]
    process = subprocess.Popen(
        command, cwd=home, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    process.communicate(timeout=240)
    assert process.returncode == 1
    deadline = time.monotonic() + 60
    while left := group(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def group(leader: int) -> list[str]:
    """Commands of the living processes of a group."""
    found = []
    for process in psutil.process_iter(["pid", "status", "cmdline"]):
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or []))
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--set", "method.nu=1"), "method.nu"),
        (("run", "--set", "partition.clients=5000"), "samples"),
        (("run", "--resume", "nothing"), "(there are 0 runs; `shoal runs` lists them)"),
        (("run", "method.name=fedcc"), "write --set method.name=fedcc"),
        (("run", "--sett", "rounds=1"), "No such option: --sett"),
        (("compare",), "nothing to compare"),
        (("serve", "--port", "70000"), "equal to 65535"),
        (("sites", "init", "--name", "lungs", "--address", "lead:70000"), "give a host and a port"),
    ],
)
def test_failures_are_one_message(home: Path, arguments: tuple[str, ...], words: str) -> None:
    done = shoal(home, *arguments)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list(home.glob("runs/*")), "a refused run leaves no folder"
