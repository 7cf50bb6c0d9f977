"""The user's own data, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.data.choices import Missing, OnBad, OnOdd
from shoal.data.columns import MAX_CATEGORIES
from shoal.data.intake import Intake
from shoal.data.windows import WindowOptions
from shoal.lifecycle.adding import Added, add_own


@dataclass(frozen=True)
class AddedData:
    """A data set of the user's own: its name is what `data` of a run's settings takes.

    Attributes:
        name: of the set.
        kind: image, vector or series.
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
    client_column: str = "client",
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    missing: Missing | None = None,
    max_categories: int = MAX_CATEGORIES,
    windows: WindowOptions | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    append: bool = False,
    force: bool = False,
) -> AddedData:
    """Add images in one sub-folder per client, or a table (Parquet, CSV) with a client column.

    Args:
        path: the folder, or the table.
        name: what the set is called: small letters, digits, - and _.
        size: of images: height and width; none: the most common.
        on_bad, on_odd: images that cannot be read: refuse or skip; of another size: refuse, skip or resize.
        labels: of images: a CSV with the columns file and label.
        client_column, label_column: of a table: whose a row is, and its label.
        features, missing, max_categories, windows: of a table: see `shoal.data.table_options.TableOptions`.
        test, seed: share of each client's samples that becomes the test part, and the seed of that draw.
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
        client_column=client_column,
        label_column=label_column,
        features=features,
        missing=missing,
        max_categories=max_categories,
        windows=windows,
        test=test,
        seed=seed,
        licence=licence,
        append=append,
        force=force,
    )
    if added.warning:
        warnings.warn(added.warning, stacklevel=2)
    return _added_data(added)


def _added_data(added: Added) -> AddedData:
    """Return what was added as a user of Python sees it."""
    manifest = added.prepared.manifest
    skipped = tuple((str(file), str(why)) for file, why in manifest.extra.get("skipped", ()))
    clients = tuple(map(str, manifest.extra.get("clients", ())))
    about = (manifest.name, manifest.kind, manifest.shape, manifest.train, manifest.test)
    return AddedData(*about, clients, skipped, added.prepared.folder, added.intake)
