"""The labels of images: a CSV with the columns file and label, one row an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.data.intake.names import names_of
from shoal.data.intake.spelling import note_spellings, spelling_key
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.wording import first_of


def read_labels(
    path: Path,
    files: Sequence[str],
    passed_over: Collection[str],
    onto: Prepared | None = None,
    intake: Intake | None = None,
    *,
    may_be_ahead: bool = False,
) -> list[str]:
    """Return the label of each file.

    The table may spell a file with a backslash, in another Unicode form, or with spaces around it.

    Args:
        path: the CSV.
        files: paths below the folder of images, with /.
        passed_over: paths that may have a label and are not among `files`.
        onto: the set that the images are appended to; its labels keep their spelling.
        intake: notes of files and labels in another spelling.
        may_be_ahead: labels of files that do not exist (yet, or any more) are noted, and no error.

    Raises:
        DataError: a file has no label or two, or a label belongs to a missing file.
    """
    notes = intake or Intake()
    table = read_table(path, text=("file", "label"))
    wanted = "expected a CSV with the columns file and label"
    try:
        columns = [find_column(table, column, path, "another name") for column in ("file", "label")]
    except DataError as error:
        raise DataError(f"{error}: {wanted}") from None
    table = table.dropna(subset=columns)
    known = list(onto.manifest.class_names) if onto else []
    labels = names_of(table[columns[1]], path, "label", known, notes)
    names = _paths(table[columns[0]], {*files, *passed_over}, notes)
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"{path} labels these files more than once: {_some(repeated)}")
    label_of = {name: str(label) for name, label in zip(names, labels, strict=True)}
    unlabelled = [file for file in files if file not in label_of]
    if unlabelled:
        raise DataError(f"{path} has no label for {len(unlabelled)} images: {_some(unlabelled)}")
    unknown = sorted(set(label_of) - {*files, *passed_over})
    if may_be_ahead:
        for name in unknown:
            notes.note("labels of files that do not exist", name)
    elif unknown:
        raise DataError(f"{path} labels {len(unknown)} files that do not exist: {_some(unknown)}")
    return [label_of[file] for file in files]


def _paths(column: pd.Series, there: Collection[str], intake: Intake) -> list[str]:
    """Return the files of a column, in the spelling of the disk where they exist."""
    spelled = {spelling_key(file): file for file in there}
    meant: dict[str, str] = {}
    for given in map(str, column):
        name = Path(given).as_posix()
        if name not in there:
            turned = Path(given.strip().replace("\\", "/")).as_posix()
            name = spelled.get(spelling_key(turned), name)
            meant[given] = name
    note_spellings({given: name for given, name in meant.items() if name in there}, "files of labels", intake)
    return [meant.get(given, Path(given).as_posix()) for given in map(str, column)]


def _some(names: Sequence[str]) -> str:
    return first_of([shown(name, 200) for name in names])
