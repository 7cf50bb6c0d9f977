"""Features that may be labels which nobody named: whole numbers or words of few values, such as `cultivar` of wines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from shoal.data.intake.columns import category_values
from shoal.data.intake.names import name_of
from shoal.data.intake.options import AddOptions
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.wording import first_of

POSSIBLE = "possible_labels"
"""Entry of a manifest's `extra`: name and values of each feature that may be the label."""
MAX_VALUES = 20
"""A label has at most so many values."""
MIN_ROWS = 2
"""Rows for each value of a label, on average."""
MAX_COLUMNS = 3
"""A sentence names at most so many features."""
MAX_SHOWN = 5
"""A sentence names at most so many values of a feature."""
_NUMBER = re.compile(r"\d+")


def possible_labels(
    table: pd.DataFrame, features: Sequence[str], options: AddOptions, intake: Intake
) -> dict[str, Any]:
    """Return the entry of a new set's manifest about features that may be the label, and note them; else nothing.

    The last column comes first. Numbered columns (`q1`, `q2`) are measurements of one kind, and no labels. Where the
    user names the label or the features, nothing is left to ask.

    Args:
        table: the columns.
        features: those that are features.
        options: of the user.
        intake: notes of these features.
    """
    if options.label_column is not None or options.features is not None:
        return {}
    stems = [_NUMBER.sub("#", name) for name in features]
    possible: list[tuple[str, list[str]]] = []
    for name, stem in reversed(list(zip(features, stems, strict=True))):
        values = [] if stems.count(stem) > 1 else _values(table[name])
        if values:
            possible.append((name, values))
            intake.note("feature that may be the label (--label-column)", name, first_of(values, MAX_SHOWN))
    return {POSSIBLE: possible} if possible else {}


def _values(column: pd.Series) -> list[str]:
    """Return the values of a feature that may be a label, in order; none for another one."""
    present = column.dropna()
    if not 2 <= present.nunique() <= min(MAX_VALUES, len(present) // MIN_ROWS):
        return []
    if not pd.api.types.is_numeric_dtype(column):
        return category_values(column) or []
    values = np.sort(present.unique())
    if (values != np.round(values.astype(float))).any():
        return []
    return [str(name_of(value)) for value in values]


def possible_label_words(extra: Mapping[str, Any]) -> str:
    """Return what to do about the features of a set that may be the label; empty where there are none.

    >>> possible_label_words({"possible_labels": [("cultivar", ["1", "2", "3"])]})
    'cultivar (1, 2, 3) is a feature; if it is the label, add the set again with --label-column cultivar --force'
    """
    possible: Sequence[tuple[str, Sequence[str]]] = extra.get(POSSIBLE, ())
    if not possible:
        return ""
    named = first_of([f"{name} ({first_of(values, MAX_SHOWN)})" for name, values in possible], MAX_COLUMNS)
    verb = "is a feature; if it is" if len(possible) == 1 else "are features; if one of them is"
    first = shlex.quote(possible[0][0])
    return f"{named} {verb} the label, add the set again with --label-column {first} --force"
