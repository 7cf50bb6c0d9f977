"""What was seen, taken, adapted and left out: totals first, and names that a terminal can show."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.data.sets.intake_notes import Intake, IntakeRow, names_file, record


def notes() -> Intake:
    intake = Intake()
    intake.see("rows", 5)
    intake.take("rows", 5)
    intake.see("columns", 4)
    intake.take("columns", 2)
    intake.leave_out("a label is no measurement", "label")
    intake.leave_out("constant", "site\n\x1b[2J")
    intake.leave_out("constant", "site\n\x1b[2J")  # noted twice, counted once
    intake.adapt("float64 rounded to float32", "a", "off by up to 1e-3")
    return intake


def test_the_table_has_totals_by_unit_and_escaped_names() -> None:
    assert notes().rows() == [
        IntakeRow("rows seen", 5),
        IntakeRow("rows taken", 5),
        IntakeRow("columns seen", 4),
        IntakeRow("columns taken", 2),
        IntakeRow("adapted: float64 rounded to float32", 1, ("a",)),
        IntakeRow("left out: a label is no measurement", 1, ("label",)),
        IntakeRow("left out: constant", 1, ("site\\n\\x1b[2J",)),
    ]


def test_a_line_says_the_same() -> None:
    said = "adapted: 1 float64 rounded to float32; left out: 1 a label is no measurement, 1 constant"
    assert notes().summary() == said
    assert Intake().summary() == ""


def test_the_file_of_names_is_ascii_and_gives_every_name_back(tmp_path: Path) -> None:
    intake = notes()
    intake.leave_out("its name is not text in UTF-8", "ü\udcff.png")
    path = names_file(tmp_path / "mine")
    assert path == tmp_path / "mine.intake.json"
    assert record(tmp_path / "mine", intake) == path
    read = json.loads(path.read_bytes().decode("ascii"))
    assert read["left_out"] == intake.left_out
    assert list(tmp_path.iterdir()) == [path]


def test_an_append_adds_what_is_new(tmp_path: Path) -> None:
    path = record(tmp_path / "mine", notes())
    intake = notes()
    intake.adapt("float64 rounded to float32", "b")
    record(tmp_path / "mine", intake, append=True)
    read = json.loads(path.read_text())
    assert read["left_out"] == notes().left_out
    assert read["adapted"] == {"float64 rounded to float32": {"a": "off by up to 1e-3", "b": ""}}
    assert read["seen"] == {"rows": 10, "columns": 8}
    path.write_text('{"adapted": 3}')
    record(tmp_path / "mine", intake, append=True)
    assert json.loads(path.read_text())["seen"] == {"rows": 5, "columns": 4}
