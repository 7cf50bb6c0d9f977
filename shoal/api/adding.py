"""The user's own data, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.data.choices import OnBad, OnOdd
from shoal.data.intake import Intake
from shoal.lifecycle.adding import add_own


@dataclass(frozen=True)
class AddedData:
    """A data set of the user's own: its name is what `data` of a run's settings takes.

    Attributes:
        name: of the set.
        kind: image or vector.
        shape: of a sample.
        train, test: how many samples.
        clients: their names.
        skipped: files that were left out, with reasons.
        folder: where it lies.
        intake: what was taken, adapted and left out, with all names.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    train: int
    test: int
    clients: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    folder: Path
    intake: Intake


def add_data(
    path: str | Path,
    name: str,
    *,
    size: tuple[int, int] | None = None,
    on_bad: OnBad = "refuse",
    on_odd: OnOdd = "refuse",
    labels: str | Path | None = None,
    clients: str | Path | None = None,
    client_column: str = "client",
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    append: bool = False,
    force: bool = False,
) -> AddedData:
    """Add images in one sub-folder per client, a table (Parquet, CSV) with a client column, or vectors in arrays.

    Args:
        path: the folder, the table, or the file of arrays.
        name: what the set is called: small letters, digits, - and _.
        size: of images: height and width; none: the most common.
        on_bad, on_odd: images that cannot be read: refuse or skip; of another size: refuse, skip or resize.
        labels: of images: a CSV with the columns file and label.
        clients: of an array: a table, or .npy of names, with a row a vector.
        client_column, label_column: of a table, of `clients` or of an array: whose a row is, and its label.
        features: of a table: the columns that are features, `*` for all that are measurements; none: these. Of a file
            with several arrays: the one with the vectors.
        test: share of each client's samples that becomes the test part, drawn by `seed`.
        seed: seed for drawing the test split.
        licence: kept with the set.
        append: add what is new to the set of this name.
        force: replace it.

    Raises:
        ShoalError: names every file or column that is wrong.
    """
    added = add_own(
        Path(path),
        name,
        size=size,
        on_bad=on_bad,
        on_odd=on_odd,
        labels=None if labels is None else Path(labels),
        clients=None if clients is None else Path(clients),
        client_column=client_column,
        label_column=label_column,
        features=features,
        test=test,
        seed=seed,
        licence=licence,
        append=append,
        force=force,
    )
    if added.warning:
        warnings.warn(added.warning, stacklevel=2)
    manifest = added.prepared.manifest
    skipped = tuple((str(file), str(why)) for file, why in manifest.extra.get("skipped", ()))
    names = tuple(map(str, manifest.extra.get("clients", ())))
    about = (manifest.name, manifest.kind, manifest.shape, manifest.train, manifest.test)
    return AddedData(*about, names, skipped, added.prepared.folder, added.intake)
