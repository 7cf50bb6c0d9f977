"""The day on a GPU, cut down and tried out on the pretend one: parts begin, are stopped, and go on."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.settings import places
from shoal.engine.settings.machine import RunHardware
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal_research.benchmarks import gpu_day
from shoal_research.benchmarks.gpu_day import DONE, STOPPED, Part
from tests.pretend_gpu.as_gpu_names import NOTES, THIS
from tests.pretend_gpu.cases import write_sets
from tests.pretend_gpu.device import DEVICE

STUDY = "fedpnp-table1"
CHANGED = {
    "data.name": "colour",
    "model.encoder": "tiny-conv",
    "local.batch": 4,
    "local.epochs": 2,
    "rounds": 3,
    "tracking.mlflow": "false",
    "tracking.prefect": "off",
}


def on_the_pretend_device(part: Part) -> Part:
    """The part by processes whose GPU is the pretend one."""
    return replace(part, command=(*part.command[:2], THIS, *part.command[2:]))


class Day:
    """Calls of the command in a home of their own.

    Args:
        folder: of the home.
        patch: for this test.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.out, self.notes_file, self.patch = folder / "day", folder / "notes.jsonl", patch
        patch.setenv("SHOAL_HOME", str(folder))
        patch.setenv(NOTES, str(self.notes_file))
        patch.setenv("OMP_NUM_THREADS", "1")
        write_sets()

    def call(self, name: str, capsys: pytest.CaptureFixture[str], stop: Callable[[], bool] | None = None) -> str:
        """Call the command, of whose parts there is this one alone, and stop that at once where `stop` says so."""
        whole = gpu_day.parts

        class Process(subprocess.Popen[Any]):
            def wait(self, timeout: float | None = None) -> int:
                while stop is not None and timeout is not None and timeout > gpu_day.GRACE:
                    if stop():
                        raise subprocess.TimeoutExpired(self.args, timeout)
                    try:
                        return super().wait(0.05)
                    except subprocess.TimeoutExpired:
                        pass
                return super().wait(timeout)

        with self.patch.context() as patch:
            patch.setattr(
                gpu_day, "parts", lambda *given: [on_the_pretend_device(p) for p in whole(*given) if p.name == name]
            )
            patch.setattr(gpu_day.subprocess, "Popen", Process)
            words = ["--device", DEVICE, "--out", str(self.out), "--minutes", "8", "--shrink", "1000"]
            with contextlib.suppress(SystemExit):  # where it was stopped something is left
                gpu_day.main([*words, *(w for path, value in CHANGED.items() for w in ("--set", f"{path}={value}"))])
        print((self.out / f"{name}.log").read_text()[-3000:])
        state = json.loads((self.out / "state.json").read_text())[name]["state"]
        assert f"| {state} |" in capsys.readouterr().out
        return str(state)

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """What the pretend device was asked, of one kind."""
        lines = self.notes_file.read_text().splitlines() if self.notes_file.exists() else []
        return [note for note in map(json.loads, lines) if note["kind"] == kind]

    def runs(self) -> list[Path]:
        """Folders of the runs, by name."""
        return sorted(path.parent for path in places.runs().glob("*/settings.yaml"))


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    return Day(tmp_path, monkeypatch)


@pytest.mark.slow
def test_speed_is_measured_again_after_a_stop(day: Day, capsys: pytest.CaptureFixture[str]) -> None:
    log = day.out / "device-0.log"
    assert day.call("device-0", capsys, lambda: "| work |" in log.read_text()) == STOPPED
    assert day.call("device-0", capsys) == DONE
    *_, asked = day.notes("shoal_research.benchmarks.device")  # the call that was stopped may have come to its notes
    assert asked["bf16"] > 100, "it trained there, in the precision of a GPU"
    lines = [line for line in log.read_text().splitlines() if line.startswith("| 20 clients of 500 at 28x28 |")]
    ways = [line.split(" | ")[1] for line in lines]
    assert ways[-4:] == ["by hand", "one by one", "one by one, graphs", "2 together"]
    assert json.loads(log.read_text().splitlines()[-1])["device"] == DEVICE


@pytest.mark.slow
def test_a_study_goes_on_after_a_stop(day: Day, capsys: pytest.CaptureFixture[str]) -> None:
    part = f"{STUDY}-1"
    assert day.call(part, capsys, lambda: bool(day.notes("Train"))) == STOPPED
    (first,) = day.runs()
    run = RunFolder(first)
    assert run.status().state != FINISHED
    assert day.call(part, capsys) == DONE
    runs = [RunFolder(path) for path in day.runs()]
    assert run.path in {each.path for each in runs}
    assert len(runs) == 2
    for each in runs:
        assert each.status().state == FINISHED
        assert each.lineage().resolved == RunHardware("cuda", "bf16")
        clients = each.table("clients")
        assert sorted(zip(clients["round"], clients["client"], strict=True)) == [
            (round, client) for round in (1, 2, 3) for client in range(5)
        ]
        told = Counter((e.round, e.client) for e in each.events() if e.kind == "client_finished")
        assert max(told.values()) == 1, "no work of a client was done twice"
    assert [event.kind for event in run.events()].count("round_started") > 2, "it went on"
    for kind in ("Train", "Evaluate", "Assign"):
        assert all(note["bf16"] for note in day.notes(kind)), kind
    assert {run.settings().data.name for run in runs} == {"colour"}
