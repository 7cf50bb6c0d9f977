"""What a killed process left beside a set goes once the set is written or found whole."""

from __future__ import annotations

from pathlib import Path

from shoal.data.sets.intake_notes import names_file
from shoal.data.sets.writing import writing


def test_what_was_left_beside_a_set_is_removed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    other = own / ".mine.4711.140.tmp"
    other.mkdir(parents=True)
    (own / "mine").mkdir()
    names = names_file(own / "mine")
    names.write_text("{}")
    half = own / f".{names.name}.4711.tmp"
    half.write_text("{")
    of_another = own / ".mine-too.intake.json.4711.tmp"
    of_another.write_text("{")
    with writing(own / "mine"):
        pass
    assert sorted(path.name for path in own.iterdir()) == [of_another.name, "mine", names.name]
