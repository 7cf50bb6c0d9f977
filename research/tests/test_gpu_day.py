"""The day on a GPU: parts are done in slices of time, each goes on where it was stopped."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

from shoal_research.benchmarks import gpu_day
from shoal_research.benchmarks.device import CASES
from shoal_research.benchmarks.gpu_day import DONE, FAILED, STOPPED, Day, Part, Trial, parts
from shoal_research.definition import load_study

COUNTING = """
import subprocess, sys, time
steps, total = sys.argv[1], int(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    while len(open(steps).read()) < total:
        with open(steps, "a") as file:
            file.write("x")
        time.sleep(0.3)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
child.kill()
print("finished", flush=True)
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_day, "GRACE", 20.0)
    monkeypatch.setattr(gpu_day, "LEAST", 0.5)
    path = tmp_path / "steps"
    path.write_text("")
    return path


def counting(steps: Path, total: int) -> Part:
    script = steps.parent / "count.py"
    script.write_text(COUNTING)
    return Part("count", "something long", (sys.executable, str(script), str(steps), str(total)))


def test_a_part_goes_on_where_it_was_stopped_and_what_fails_is_tried_again(steps: Path, tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    once = f"import pathlib, sys; sys.exit(0 if pathlib.Path({str(flag)!r}).exists() else 3)"
    kept = (sys.executable, "-c", f"open({str(tmp_path / 'kept')!r}, 'w').close()")
    fails = Part("fails", "something broken", (sys.executable, "-c", once), kept)
    wanted = [fails, counting(steps, 16)]
    day = Day(wanted, tmp_path / "out")
    day.go_on(22.0 / 60)
    assert day.progress["fails"].state == FAILED
    assert not (tmp_path / "kept").exists(), "what failed is not kept"
    assert day.progress["count"].state == STOPPED
    some = len(steps.read_text())
    assert 0 < some < 16
    assert "interrupted" in (tmp_path / "out" / "count.log").read_text(), "it is stopped as Ctrl-C does it"
    assert "| count | something long | stopped |" in day.table()
    flag.touch()
    again = Day(wanted, tmp_path / "out")
    assert [part.name for part in again.left] == ["fails", "count"]
    again.go_on(2.0)
    assert not again.left
    assert (tmp_path / "kept").exists()
    assert len(steps.read_text()) == 16, "nothing was done twice"
    state = json.loads((tmp_path / "out" / "state.json").read_text())
    assert {name: at["state"] for name, at in state.items()} == {"fails": DONE, "count": DONE}
    assert state["count"]["calls"] == 2


def test_a_part_heeds_its_interrupt_where_the_day_was_begun_in_the_background(steps: Path, tmp_path: Path) -> None:
    """A shell has what it begins with & ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        day = Day([counting(steps, 400)], tmp_path / "out")
        assert day.execute(day.parts[0].command, "count", 2.0) == STOPPED
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in (tmp_path / "out" / "count.log").read_text()


def test_nothing_is_begun_without_time_for_it(steps: Path, tmp_path: Path) -> None:
    day = Day([counting(steps, 1)], tmp_path / "out")
    day.go_on(20.2 / 60)
    assert not steps.read_text()
    assert day.progress["count"].state == ""


def test_every_part_is_there() -> None:
    """Rows, columns and scales that the commands name are those of the studies."""
    found = parts("cuda")
    assert len({part.name for part in found}) == len(found) == 1 + 2 + len(CASES) + 6
    assert found[0].name == "probe"
    for part in (part for part in found if "study" in part.command):
        words = part.command
        study = load_study(words[words.index("study") + 1])
        assert words[words.index("--scale") + 1] in study.scales
        for kind, known in (("--row", study.rows), ("--column", study.columns)):
            given = [words[place + 1] for place, word in enumerate(words) if word == kind]
            assert set(given) <= set(known), part.name


def test_a_day_that_is_tried_out_is_not_kept() -> None:
    whole, tried = parts("cuda"), parts("cuda", Trial(7, ("rounds=2", "data.name=digits")))
    assert [part.name for part in tried] == [part.name for part in whole]
    for cut, part in zip(tried, whole, strict=True):
        assert set(part.command) < set(cut.command)
        if part.keep:
            assert cut.keep == ()
            assert cut.command[-4:] == ("--set", "rounds=2", "--set", "data.name=digits")
        else:
            assert cut.command[cut.command.index("--shrink") + 1] == "7"


def test_without_a_gpu_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu_day.main(["--out", str(tmp_path / "day")])
    assert not (tmp_path / "day").exists()
