"""What became of everything that was to go into a set: taken, adapted or left out, by kind and by name.

Readers of folders and tables note each conversion and each thing that they leave out, so that nothing is silent. The
names of one addition lie beside the set, in NAME.intake.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
Names = dict[str, str]
"""Names of files, columns or rows, each with a detail that differs from name to name, or an empty text."""


@dataclass(frozen=True)
class IntakeRow:
    """One row of the table of an intake.

    Attributes:
        what: such as "files seen", "adapted: CMYK converted to RGB" or "left out: hidden".
        count: how many.
        names: the first of them, as a terminal can show them; empty for totals.
    """

    what: str
    count: int
    names: tuple[str, ...] = ()


@dataclass
class Intake:
    """Notes of what one addition did.

    Attributes:
        seen: how many of each unit there were; a unit is a plural such as "files", "rows" or "columns".
        taken: how many of each unit are now in the set.
        adapted: names of what was converted, by kind of conversion.
        left_out: names of what was not taken, by reason.

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
    adapted: dict[str, Names] = field(default_factory=dict)
    left_out: dict[str, Names] = field(default_factory=dict)

    def see(self, unit: str, count: int = 1) -> None:
        """Count things that were there, such as see("files", 12)."""
        self.seen[unit] = self.seen.get(unit, 0) + count

    def take(self, unit: str, count: int = 1) -> None:
        """Count things that are now in the set."""
        self.taken[unit] = self.taken.get(unit, 0) + count

    def adapt(self, kind: str, name: str, detail: str = "") -> None:
        """Note that `name` was converted; `kind` is the same text for all that are converted alike."""
        self.adapted.setdefault(kind, {})[name] = detail

    def leave_out(self, reason: str, name: str, detail: str = "") -> None:
        """Note that `name` was not taken; `reason` is the same text for all that are left out alike."""
        self.left_out.setdefault(reason, {})[name] = detail

    def rows(self, most_names: int = 3) -> list[IntakeRow]:
        """Return the table: totals by unit, then conversions, then what was left out, the most frequent first."""
        found: list[IntakeRow] = []
        for unit, count in self.seen.items():
            found.append(IntakeRow(f"{unit} seen", count))
            found.append(IntakeRow(f"{unit} taken", self.taken.get(unit, 0)))
        for heading, groups in (("adapted", self.adapted), ("left out", self.left_out)):
            for kind, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
                first = tuple(printable(name) for name in list(names)[:most_names])
                found.append(IntakeRow(f"{heading}: {printable(kind)}", len(names), first))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the notes as a JSON object, with every name."""
        return {"seen": self.seen, "taken": self.taken, "adapted": self.adapted, "left_out": self.left_out}


def printable(name: str) -> str:
    r"""Return a name on one line: control characters, line breaks and lone surrogates are escaped.

    >>> printable("a/ü\n\x1b[31m\udcff.png")
    'a/ü\\n\\x1b[31m\\udcff.png'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def names_file(set_folder: Path) -> Path:
    """Return the file beside a set that holds all names of its intakes: data/store/own/NAME.intake.json."""
    return set_folder.with_name(f"{set_folder.name}.intake.json")


def write_names(path: Path, additions: list[dict[str, Any]]) -> None:
    """Write the additions to a set, the oldest first, as ASCII JSON: odd letters in names are escaped."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps({"format": FORMAT, "additions": additions}, indent=1) + "\n")
    scratch.replace(path)
