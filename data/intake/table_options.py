"""What the user says about a table that becomes a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.data.intake.choices import Missing
from shoal.data.intake.columns import MAX_CATEGORIES
from shoal.data.intake.windows import WindowOptions


@dataclass(frozen=True)
class TableOptions:
    """Columns of a table, and how they become samples.

    Attributes:
        client_column: the client of a row.
        label_column: the label of a row; None without labels.
        features: the columns that are features; None: all that are measurements (`shoal.data.intake.columns`).
        missing: what is done with missing values: refuse them, fill them with the mean of their column over all
            clients, or leave their rows out (drop-rows); None: refuse, or as in the set to append to.
        max_categories: largest number of different values of a column of text; each value becomes a feature
            COLUMN=VALUE of 0 and 1.
        windows: how rows that are samples of series are cut into windows (`shoal.data.intake.windows`); without a
            length each row is a vector, or what the rows of the set to append to are.
        licence: kept in the manifest.
    """

    client_column: str = "client"
    label_column: str | None = None
    features: Sequence[str] | None = None
    missing: Missing | None = None
    max_categories: int = MAX_CATEGORIES
    windows: WindowOptions = field(default_factory=WindowOptions)
    licence: str = "not stated"
