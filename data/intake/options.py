"""What the user says about data that become a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from shoal.core.errors import DataError
from shoal.data.intake.choices import Missing, OnBad, OnOdd
from shoal.data.intake.columns import MAX_CATEGORIES
from shoal.data.intake.windows import WindowOptions

CHOICES = {"on_bad": get_args(OnBad), "on_odd": get_args(OnOdd), "missing": (*get_args(Missing), None)}


@dataclass(frozen=True)
class AddOptions:
    """Options of an addition; those of another kind of data are ignored.

    Attributes:
        size: of images: height and width of all; None: the most common size, or that of the set.
        on_bad: of images: refuse all, or skip files that are unreadable, of no client, or do not fit the set.
        on_odd: of images: refuse, skip or resize those of another size.
        labels: of images: a CSV with the columns file (relative to the folder) and label, one row an image.
        clients: of an array: a table or .npy with one row a vector that names its client.
        client_column: of a table, of `clients` or of an array: the client of a row.
        label_column: likewise: the label of a row; None: without labels (`label` of .npz and .h5).
        features: of a table: the columns that are features; None: all that are measurements
            (`shoal.data.intake.columns`). Of an array: the one that holds the vectors; None: the only one, or x.
        missing: of a table: refuse missing values, fill them with the mean of their column over all clients, or leave
            their rows out (drop-rows); None: refuse, or as in the set to append to.
        max_categories: of a table: largest number of different values of a column of text; each value becomes a
            feature COLUMN=VALUE of 0 and 1.
        windows: of a table: how rows that are samples of series are cut into windows (`shoal.data.intake.windows`);
            without a length each row is a vector, or what the rows of the set to append to are.
        test: share of each client's samples that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        append: add what is new to the set of this name. Its samples keep their order, numbers and part.
        force: replace a set of this name.

    Raises:
        DataError: a choice is none of those that there are.
    """

    size: tuple[int, int] | None = None
    on_bad: OnBad = "refuse"
    on_odd: OnOdd = "refuse"
    labels: Path | None = None
    clients: Path | None = None
    client_column: str = "client"
    label_column: str | None = None
    features: Sequence[str] | None = None
    missing: Missing | None = None
    max_categories: int = MAX_CATEGORIES
    windows: WindowOptions | None = None
    test: float = 0.0
    seed: int = 0
    licence: str = "not stated"
    append: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for option, allowed in CHOICES.items():
            value = getattr(self, option)
            if value not in allowed:
                raise DataError(f"{option} is {value!r}, expected one of {', '.join(filter(None, allowed))}")
