"""The labels of images: a CSV with the columns file and label, one row an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.core.errors import DataError, shown
from shoal.data.intake.client_table import label_names
from shoal.data.intake.spelling import note_spellings, spelling_key
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.wording import first_of


def read_labels(path: Path, files: Sequence[str], onto: Prepared | None, intake: Intake) -> list[str]:
    """Return the label of each file.

    The table may spell a file with a backslash, in another Unicode form, or with spaces around it.

    Args:
        path: the CSV.
        files: paths below the folder of images, with /.
        onto: the set that the images are appended to; its labels keep their spelling.
        intake: notes of files and labels in another spelling, and of labels of other files.

    Raises:
        DataError: a file has no label or two.
    """
    table = read_table(path, text=("file", "label"))
    try:
        columns = [find_column(table, column, path, "another name") for column in ("file", "label")]
    except DataError as error:
        raise DataError(f"{error}: expected a CSV with the columns file and label") from None
    table = table.dropna(subset=columns)
    labels = label_names(table[columns[1]], path, onto, intake)
    spelled = {spelling_key(file): file for file in files}
    there = set(files)
    names = []
    for given in map(str, table[columns[0]]):
        name = Path(given.strip().replace("\\", "/")).as_posix()
        names.append(given if given in there else spelled.get(spelling_key(name), name))
    meant = dict(zip(map(str, table[columns[0]]), names, strict=True))
    note_spellings({given: name for given, name in meant.items() if name in there}, "files of labels", intake)
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"{path} labels these files more than once: {_some(repeated)}")
    label_of = {name: str(label) for name, label in zip(names, labels, strict=True)}
    unlabelled = [file for file in files if file not in label_of]
    if unlabelled:
        raise DataError(f"{path} has no label for {len(unlabelled)} images: {_some(unlabelled)}")
    if others := [name for name in label_of if name not in there]:
        intake.note("table with labels of other files", path.name, _some(others))
    return [label_of[file] for file in files]


def _some(names: Sequence[str]) -> str:
    return first_of([shown(name, 200) for name in names])
