"""What every command shares: names that cannot be shown are escaped, warnings and lack of memory are said."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from shoal.cli.console import NameSafeConsole, cell, shoal_command, show_result
from shoal.cli.main import is_out_of_memory, out_of_memory
from shoal.core.errors import escaped
from shoal.engine.store.run_events import Event
from shoal.lifecycle.progress import progress
from shoal.review.results.result import RunResult


def printed(thing: Any, encoding: str = "utf-8", width: int = 100) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding, errors="backslashreplace", newline="")
    NameSafeConsole(file=file, width=width).print(thing)
    file.flush()
    return raw.getvalue().decode(encoding)


RESULT = RunResult(
    run="runs/one",
    status="finished",
    rounds=1,
    metrics={"acc": 0.5, "clusters_used": 4.0},
    quality={"site_nmi": 0.25, "neighbour_agreement_of_pixels": 0.125},
    bytes={"up": 956624, "down": 1000, "d2d": 0},
    seconds=3.14,
    mlflow_run=None,
    weights_sha256=None,
)


def test_tables_have_names_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(RESULT, "finished after 1 round")
    shown = capsys.readouterr().out
    assert "finished after 1 round " in shown
    rows = {tuple(word.strip() for word in line.split("│")[1:3]) for line in shown.splitlines() if "│" in line}
    assert rows == {
        ("ACC", "0.5000"),
        ("clusters with samples", "4"),
        ("NMI of clusters and clients", "0.2500"),
        ("neighbour agreement of K-means on pixels", "0.1250"),
        ("sent to the server", "956.6 kB"),
        ("sent from the server", "1.0 kB"),
        ("time of training", "3.1 s"),
    }
    sent = replace(RESULT, bytes={**RESULT.bytes, "d2d": 5})
    show_result(sent, "finished")
    assert "sent between clients" in capsys.readouterr().out


def test_control_characters_of_names_are_escaped() -> None:
    assert printed(Text("a\x1b[2Jb\x85c")) == "a\\x1b[2Jb\\x85c\n"
    table = Table("file")
    table.add_row(cell("one\ntwo\udcff"))
    assert "one\\ntwo\\udcff" in printed(table)
    assert escaped("Łódź 上海") == "Łódź 上海"
    assert cell(0.12345).plain == "0.123"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\u0141\\xf3d\\u017a"), ("cp1252", "\\u0141ód\\u017a")])
def test_letters_outside_the_terminals_alphabet_are_escaped(encoding: str, shown: str) -> None:
    assert printed(cell("Łódź"), encoding) == f"{shown}\n"
    code = "from shoal.cli.console import out; out.print('Łódź'); print('Łódź')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={"PYTHONIOENCODING": encoding, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.decode(encoding).splitlines() == [shown, shown], done.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_warnings_are_printed_when_they_happen(terminal: bool) -> None:
    file = io.StringIO()
    console = NameSafeConsole(file=file, width=100, force_terminal=terminal, color_system=None)
    with progress(console) as observe:
        observe(Event("started", {"round": 0, "rounds": 3}))
        observe(Event("round_finished", {"round": 1, "metrics": {}}))
        observe(Event("mlflow_incomplete", {"message": "MLflow [lost] it"}))
        assert "warning MLflow [lost] it" in file.getvalue()


def test_progress_in_a_pipe_is_made_of_lines() -> None:
    file = io.StringIO()
    with progress(NameSafeConsole(file=file, width=100), "fedcc on digits") as observe:
        observe(Event("started", {"round": 0, "rounds": 3}))
        for number in (1, 2, 3):
            observe(Event("round_started", {"round": number, "clients": 2}))
            observe(Event("client_finished", {"round": number, "client": 0}))
            observe(Event("round_finished", {"round": number, "metrics": {"acc": number / 4}}))
    # The second round ends less than ten seconds after the first, and is left out.
    assert file.getvalue() == "fedcc on digits: round 1 of 3 acc 0.250\nfedcc on digits: round 3 of 3 acc 0.750\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8 GiB"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        ImportError("libtorch.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_lack_of_memory_is_told_in_a_sentence(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert out_of_memory(error).startswith("out of memory: ")
    assert "data.limit" in out_of_memory(error)


def test_other_errors_are_no_lack_of_memory() -> None:
    for error in (ValueError("can't allocate memory"), RuntimeError("shapes differ"), OSError(2, "no such file")):
        assert not is_out_of_memory(error)


def test_the_numbers_beside_a_bar_stay_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console = NameSafeConsole(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    label = "unlike (Dirichlet 0.5): together: FedSimCLR, federated K-means"
    with progress(console, label) as observe:
        observe(Event("started", {"round": 0, "rounds": 40}))
        observe(Event("round_finished", {"round": 33, "metrics": {"acc": 0.927, "nmi": 0.882, "ari": 0.861}}))
    assert label in console.file.getvalue()
    shown = capsys.readouterr().err
    assert "33/40" in shown
    assert "acc 0.927 nmi 0.882 ari 0.861]" in shown


def test_a_program_is_named_as_the_shell_of_a_folder_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "clone" / ".venv" / "bin" / "shoal")])
    monkeypatch.setenv("PATH", "")
    assert shoal_command("shoal", tmp_path / "clone") == ".venv/bin/shoal"
    assert shoal_command("dvc", tmp_path / "other") == str(tmp_path / "clone" / ".venv" / "bin" / "dvc")
