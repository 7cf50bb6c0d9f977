"""Names that look alike: the same name with other spaces, another Unicode form, or letters without width; 1 and 1.0.

A site that is called "Oslo" in one file and "Oslo " in the next is one site, and so are 7 and 7.0. Such names become
one name, with a note, or they are refused, with each spelling escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from shoal.core.errors import DataError
from shoal.data.sets.intake_notes import Intake

WITHOUT_WIDTH = dict.fromkeys(
    [0x00AD, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF]
)
"""Soft hyphens, joiners, marks of direction and the byte order mark, as `str.translate` removes them."""
_POINT = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")
_WHOLE = re.compile(r"(-?)0*([0-9]+?)(?:\.0*)?")
MAX_GROUPS = 10
"""Largest number of names that an error lists."""


def spelling_key(name: str) -> str:
    r"""Return the key that all spellings of a name share.

    >>> spelling_key(" Cafe\u0301\u200b  Nord") == spelling_key("Caf\u00e9 Nord")
    True
    """
    return " ".join(unicodedata.normalize("NFC", name.translate(WITHOUT_WIDTH)).split())


def value_key(name: str) -> str:
    """Return the key that all spellings of a client or label share: also 7 and 7.0, True and TRUE.

    >>> value_key("7.0"), value_key("07"), value_key("TRUE")
    ('7', '07', 'true')
    """
    key = spelling_key(name)
    if with_point := _POINT.fullmatch(key):
        return with_point[1]
    if key.casefold() in ("true", "false"):
        return key.casefold()
    return key


def tidy(name: str) -> str:
    r"""Return a name in Unicode form NFC, without spaces and letters without width around it.

    >>> tidy("\ufeff e\u0301 ")
    'é'
    """
    edges = "".join(map(chr, WITHOUT_WIDTH))
    before = None
    while before != name:
        before = name
        name = name.strip().strip(edges)
    return unicodedata.normalize("NFC", name)


def choose_spellings(counts: Mapping[str, int], known: Sequence[str] = ()) -> dict[str, str]:
    """Return the name that each spelling stands for.

    Args:
        counts: how often each spelling occurs.
        known: existing names; their other spellings stand for them.

    >>> choose_spellings({"Oslo": 3, "Oslo ": 1, " Bergen": 2})
    {'Oslo': 'Oslo', 'Oslo ': 'Oslo', ' Bergen': 'Bergen'}
    >>> choose_spellings({"7.0": 3, "07": 1}, known=["7"])
    {'7.0': '7', '07': '07'}
    """
    chosen: dict[str, str] = {}
    for name in known:
        chosen.setdefault(value_key(name), name)
    for name in sorted(counts, key=lambda name: (-counts[name], len(name), name)):
        chosen.setdefault(value_key(name), tidy(name))
    there = set(known)
    return {name: name if name in there else chosen[value_key(name)] for name in counts}


def note_spellings(chosen: Mapping[str, str], what: str, intake: Intake) -> None:
    """Note each spelling that stands for another name; `what` is a plural such as "clients"."""
    for name, stands_for in chosen.items():
        if name != stands_for:
            intake.adapt(f"{what} in another spelling", ascii(name), f"taken as {stands_for!a}")


def refuse_alike(names: Iterable[str], what: str, where: object, advice: str) -> None:
    """Refuse names that look alike.

    Args:
        names: all different.
        what: what they name, a plural such as "columns".
        where: the file or folder.
        advice: what to do, as the end of a sentence.

    Raises:
        DataError: each group of names that look alike, escaped.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(spelling_key(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if alike:
        raise DataError(f"{where} has {what} whose names look alike: {_listed(alike)}: {advice}")


def refuse_one_value(names: Iterable[str], what: str, where: object, known: Sequence[str] = ()) -> None:
    """Refuse clients or labels that may be one value, and may be two: 7 and 07, or 1 and True.

    Args:
        names: of a file or folder, each in the spelling that it stands for.
        what, where: see `refuse_alike`.
        known: names of the set that is appended to; those that it has side by side may stay.

    Raises:
        DataError: each group of such names.
    """
    there = set(known)
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *names]):
        groups.setdefault(_value(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1 and not there.issuperset(group)]
    if alike:
        raise DataError(
            f"{where}: {what} that may be one value in two spellings: {_listed(alike)}: write each in one way, in this "
            "file and in the set"
        )


def _value(name: str) -> str:
    """Return a whole number without zeros in front, and 1 and 0 for true and false; any other name is its own value."""
    key = value_key(name)
    if whole := _WHOLE.fullmatch(key):
        return f"{whole[1] * (whole[2] != '0')}{whole[2]}"
    return {"true": "1", "false": "0"}.get(key, name)


def _listed(groups: Sequence[Sequence[str]]) -> str:
    more = f"; and {len(groups) - MAX_GROUPS} more" if len(groups) > MAX_GROUPS else ""
    return "; ".join(" and ".join(map(ascii, group)) for group in groups[:MAX_GROUPS]) + more
