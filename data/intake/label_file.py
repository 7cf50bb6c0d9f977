"""Labels of files: a CSV with the columns file and label, one row a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.intake.client_table import label_names
from shoal.data.intake.folder_files import one_spelling
from shoal.data.intake.spelling import some_of
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


def labels_by_file(path: Path, files: Sequence[str], onto: PreparedSet | None, intake: Intake) -> dict[str, str]:
    """Return the labels of a table by file, in its order; files may be missing, and others may be there.

    The table may spell a file with backslashes or in another Unicode form.

    Args:
        path: the CSV.
        files: known ones, with /; a file that the table spells otherwise has the name that it has here.
        onto: a set whose labels keep their spelling.
        intake: notes of labels in another spelling.

    Raises:
        DataError: a file has two labels.
    """
    table = read_table(path, text=("file", "label"))
    needed = f"give a column label, and a column file with names such as {some_of(files[:1])}"
    columns = [find_column(table, column, path, needed) for column in ("file", "label")]
    table = table.dropna(subset=columns)
    labels = label_names(table[columns[1]], path, onto, intake)
    there = {one_spelling(file): file for file in files}
    names = [Path(str(given).strip().replace("\\", "/")).as_posix() for given in table[columns[0]]]
    names = [there.get(one_spelling(name), name) for name in names]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"{path} labels these files more than once: {some_of(repeated)}")
    return dict(zip(names, labels.tolist(), strict=True))


def read_labels(path: Path, files: Sequence[str], onto: PreparedSet | None, intake: Intake) -> list[str]:
    """Return the label of each file; see `labels_by_file`.

    Args:
        path: the CSV.
        files: paths below the folder of images, with /.
        onto: the set that the images are appended to; its labels keep their spelling.
        intake: notes of labels in another spelling, and of other files.

    Raises:
        DataError: a file has no label or two.
    """
    label_of = labels_by_file(path, files, onto, intake)
    unlabelled = [file for file in files if file not in label_of]
    if unlabelled:
        raise DataError(f"{path} has no label for {len(unlabelled)} samples: {some_of(unlabelled)}")
    if others := sorted(set(label_of) - set(files)):
        intake.note("table with labels of other files", path.name, some_of(others))
    return [label_of[file] for file in files]
