"""Names in one spelling: without spaces around them and in Unicode form NFC; names that look alike are refused.

A site that is called "Oslo" in one file and "Oslo " in the next is one site, and that is noted. 7 and 07, or two names
that differ in letters without width, may be one or two: they are refused, with each spelling escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from shoal.core.errors import DataError, first_of, shown
from shoal.data.sets.intake_notes import Intake

_WHOLE = re.compile(r"(-?)0*([0-9]+?)(?:\.0*)?")
MAX_NAMES = 10
"""Largest number of names that an error lists."""
MAX_LETTERS = 200
"""An error cuts longer names, which may be paths."""


def tidy(name: str) -> str:
    r"""Return a name in Unicode form NFC, without spaces around it.

    >>> tidy(" e\u0301\t")
    'é'
    """
    return unicodedata.normalize("NFC", name.strip())


def note_spellings(chosen: Mapping[str, str], what: str, intake: Intake) -> None:
    """Note each spelling that stands for another name; `what` is a plural such as "clients"."""
    for name, stands_for in chosen.items():
        if name != stands_for:
            intake.adapt(f"{what} in another spelling", ascii(name), f"taken as {stands_for!a}")


def some_of(names: Iterable[object], most: int = MAX_NAMES) -> str:
    """Return the first of some names from outside, as an error can show them."""
    return first_of([shown(name, MAX_LETTERS) for name in names], most)


def refuse_alike(names: Iterable[str], what: str, where: object, known: Sequence[str] = ()) -> None:
    """Refuse names that may be one in two spellings: 7, 07 and 7.0, True and 1, or others that look alike.

    Args:
        names: of a file or folder.
        what: what they name, a plural such as "columns".
        where: the file or folder.
        known: names of the set that is appended to; those that it has side by side may stay.

    Raises:
        DataError: each group of such names, escaped.
    """
    there = set(known)
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *names]):
        groups.setdefault(_key(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1 and not there.issuperset(group)]
    if alike:
        listed = first_of([" and ".join(map(ascii, group)) for group in alike], MAX_NAMES)
        raise DataError(
            f"{where}: {what} that look alike or may be one value: {listed}: write each in one way, in this file "
            "and in the set"
        )


def _key(name: str) -> str:
    """Return what all spellings of a name share."""
    seen = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")  # letters without width
    text = " ".join(unicodedata.normalize("NFC", seen).split())
    if whole := _WHOLE.fullmatch(text):
        return f"{whole[1] * (whole[2] != '0')}{whole[2]}"
    return {"true": "1", "false": "0"}.get(text.casefold(), text)
