"""What the user says about data that become a set: options of `shoal data add` and of `shoal.add_data`.

The command line makes its options of these fields. The module imports nothing slow, so that its help appears at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from shoal.core.errors import DataError
from shoal.core.setting import setting

OnBad = Literal["refuse", "skip"]
OnOdd = Literal["refuse", "skip", "resize"]
Missing = Literal["refuse", "mean", "drop-rows"]
NOT_STATED = "not stated"
"""The licence of data of which the user names none."""
MAX_CATEGORIES = 20
"""A column of text is taken if it holds at most so many different texts, unless the user says otherwise."""
CHOICES = {"on_bad": get_args(OnBad), "on_odd": get_args(OnOdd), "missing": (*get_args(Missing), None)}


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """What the user says about windows of series; times are durations such as 24h or, where times are numbers, numbers.

    Each field's description says what it means.
    """

    window: str | None = setting(
        None,
        "table of time series: length of the windows that become samples, such as 24h or, where times are numbers, 96",
    )
    step: str | None = setting(None, "windows: time between the beginnings of two windows (default: as --window)")
    time_column: str = setting("time", "windows: column of the time of a row")
    series_column: str | None = setting(
        None, "windows: column that names the series of a row (default: one series for each client)"
    )

    @property
    def cuts_windows(self) -> bool:
        """Whether the user asks for windows.

        Raises:
            DataError: other options of windows are given without their length.
        """
        if self.window is None and (self.step or self.series_column):
            raise DataError("--step and --series-column are for windows: give --window, too")
        return self.window is not None


@dataclass(frozen=True, kw_only=True)
class AddOptions(WindowOptions):
    """Options of an addition; those of another kind of data are ignored. Each field's description says what it means.

    Raises:
        DataError: a choice is none of those that there are, or the size is none.
    """

    size: str | None = setting(None, "images: HEIGHTxWIDTH (default: the most common size, or that of the set)")
    on_bad: OnBad = setting("refuse", "images that cannot be read, are of no client, or do not fit the set")
    on_odd: OnOdd = setting("refuse", "images of another size")
    labels: Path | None = setting(
        None, "images: CSV with the columns file and label; with --append, labels of a set that has none yet"
    )
    clients: Path | None = setting(None, "array: a table with a row for each vector that says which client has it")
    client_column: str = setting("client", "table, --clients or array: column that names the client of a row")
    label_column: str | None = setting(None, "table, --clients or array: column of labels (default: no labels)")
    features: list[str] | None = setting(
        None,
        "table: a feature column; repeatable, or names separated by commas; * stands for all measurements (default: *, "
        "without labels, identifiers, dates and similar columns); array: the one with the vectors",
    )
    missing: Missing | None = setting(
        None,
        "table: missing values: refuse them, fill them with the mean of their column over all clients, or leave their "
        "rows out (default: refuse; with --append as in the set)",
    )
    max_categories: int = setting(
        MAX_CATEGORIES, "table: largest number of values of a column of text; each value becomes a column of 0 and 1"
    )
    test: float = setting(0.0, "share of each client's samples that becomes the test part")
    seed: int = setting(0, "seed of the draw of the test part")
    licence: str = setting(NOT_STATED, "licence, stored with the set")
    append: bool = setting(
        False, "add new files to the existing data set of this name; its samples keep their order, numbers and part"
    )
    force: bool = setting(False, "replace an existing data set of this name")

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise DataError(f"{name} is {value!r}, expected one of {', '.join(filter(None, allowed))}")
        if self.size is not None and not re.fullmatch(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}", self.size):
            raise DataError(f"--size {self.size!r}: expected HEIGHTxWIDTH, such as 32x32")

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        """Height and width of all images, where the user gives them."""
        if self.size is None:
            return None
        height, width = map(int, self.size.split("x"))
        return height, width
