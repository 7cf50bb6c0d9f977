"""Notes of an addition to a set: what was taken, adapted or left out, by kind and by name.

Readers of folders and tables note each conversion and each omission, so that nothing is silent. The names of all
additions lie beside the set, in NAME.intake.json.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.durable import write_file
from shoal.core.errors import DataError, escaped, short_text
from shoal.core.records import record_from_json

Names = dict[str, str]
"""Names of files, columns or rows, each with a detail that differs from name to name, or an empty text."""


@dataclass(frozen=True)
class IntakeRow:
    """One row of the table of an intake.

    Attributes:
        what: such as "files seen", "adapted: CMYK converted to RGB" or "left out: hidden".
        count: the number of names.
        names: the first names, printable on a terminal; empty for totals.
    """

    what: str
    count: int
    names: tuple[str, ...] = ()


@dataclass
class Intake:
    """Notes of one addition.

    Attributes:
        seen: number of things found, by unit; a unit is a plural such as "files", "rows" or "columns".
        taken: number of things that went into the set, by unit.
        known: number of things that the set had before, by unit.
        adapted: names of converted things, by kind of conversion.
        left_out: names of omitted things, by reason.
        noted: names of things taken unchanged with a remark, by remark, such as copies.

    >>> intake = Intake()
    >>> intake.see("files", 3)
    >>> intake.take("files", 2)
    >>> intake.adapt("CMYK converted to RGB", "a/print.jpg")
    >>> intake.leave_out("hidden", "a/.DS_Store")
    >>> [(row.what, row.count) for row in intake.rows()]
    [('files seen', 3), ('files taken', 2), ('adapted: CMYK converted to RGB', 1), ('left out: hidden', 1)]
    """

    seen: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    adapted: dict[str, Names] = field(default_factory=dict)
    left_out: dict[str, Names] = field(default_factory=dict)
    noted: dict[str, Names] = field(default_factory=dict)

    def see(self, unit: str, count: int = 1) -> None:
        """Count things that were found, for example 12 files."""
        self.seen[unit] = self.seen.get(unit, 0) + count

    def take(self, unit: str, count: int = 1) -> None:
        """Count things that went into the set."""
        self.taken[unit] = self.taken.get(unit, 0) + count

    def know(self, unit: str, count: int = 1) -> None:
        """Count things that the set had before."""
        self.known[unit] = self.known.get(unit, 0) + count

    def adapt(self, kind: str, name: str, detail: str = "") -> None:
        """Note that `name` was converted; `kind` is the same text for all conversions of this kind."""
        self.adapted.setdefault(kind, {})[name] = detail

    def leave_out(self, reason: str, name: str, detail: str = "") -> None:
        """Note that `name` was left out; `reason` is the same text for all names with this reason."""
        self.left_out.setdefault(reason, {})[name] = detail

    def note(self, what: str, name: str, detail: str = "") -> None:
        """Note that `name` was taken unchanged, with a remark."""
        self.noted.setdefault(what, {})[name] = detail

    def add(self, other: Intake) -> None:
        """Add the notes of another addition."""
        for numbers, count in ((other.seen, self.see), (other.taken, self.take), (other.known, self.know)):
            for unit, number in numbers.items():
                count(unit, number)
        for (_, own_groups), (_, groups) in zip(self._groups(), other._groups(), strict=True):
            for kind, names in groups.items():
                own_groups.setdefault(kind, {}).update(names)

    def rows(self, most_names: int = 3) -> list[IntakeRow]:
        """Return the table: totals by unit, then conversions, omissions and remarks, the most frequent first."""
        rows = []
        for unit, count in self.seen.items():
            rows += [IntakeRow(f"{unit} seen", count), IntakeRow(f"{unit} taken", self.taken.get(unit, 0))]
            if unit in self.known:
                rows.append(IntakeRow(f"{unit} that the set had before", self.known[unit]))
        for heading, groups in self._groups():
            for kind, names in _by_number(groups):
                first = tuple(map(escaped, itertools.islice(names, most_names)))
                rows.append(IntakeRow(f"{heading}: {escaped(kind)}", len(names), first))
        return rows

    def summary(self) -> str:
        """Return the table in a line, such as "adapted: 2 CMYK converted to RGB; left out: 1 hidden"; else empty."""
        parts = []
        for heading, groups in self._groups():
            kinds = ", ".join(f"{len(names)} {escaped(kind)}" for kind, names in _by_number(groups))
            if kinds:
                parts.append(f"{heading}: {kinds}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the notes as a JSON object, with every name."""
        return asdict(self)

    def _groups(self) -> tuple[tuple[str, dict[str, Names]], ...]:
        return ("adapted", self.adapted), ("left out", self.left_out), ("noted", self.noted)


def _by_number(groups: dict[str, Names]) -> list[tuple[str, Names]]:
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def names_file(set_folder: Path) -> Path:
    """Return the file beside a set that holds all names of its intakes: data/store/own/NAME.intake.json."""
    return set_folder.with_name(f"{set_folder.name}.intake.json")


def record(set_folder: Path, intake: Intake, *, append: bool = False) -> Path:
    """Write the names of an intake beside a set, as JSON in ASCII with escapes.

    Args:
        set_folder: the existing folder of the set.
        intake: the notes of this addition.
        append: add to the notes of earlier additions.

    Returns:
        The file. It is not part of the set: no digest and no DVC pointer includes it.

    Raises:
        DataError: the file cannot be written.
    """
    path = names_file(set_folder)
    whole = read_notes(path) if append else Intake()
    whole.add(intake)
    try:
        write_file(path, f"{json.dumps(whole.to_json(), indent=1)}\n".encode())
    except OSError as error:
        raise DataError(
            f"the set is in {set_folder}, but its list of names was not written: {short_text(error)}"
        ) from error
    return path


def left_out_before(set_folder: Path) -> set[str]:
    """Return the names that additions to a set left out; none if the notes are missing or damaged."""
    return {name for names in read_notes(names_file(set_folder)).left_out.values() for name in names}


def read_notes(path: Path) -> Intake:
    """Return the notes in a file; none if it is missing or damaged."""
    try:
        return record_from_json(Intake, json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError):
        return Intake()
