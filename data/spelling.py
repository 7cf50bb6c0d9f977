"""Names that look alike: the same name with other spaces, another Unicode form, or letters without width.

A site that is called "Oslo" in one file and "Oslo " in the next is one site. Such names become one name, with a note,
or they are refused, with each spelling escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from shoal.core.errors import DataError
from shoal.data.intake import Intake

WITHOUT_WIDTH = dict.fromkeys(
    [0x00AD, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF]
)
"""Soft hyphens, joiners, marks of direction and the byte order mark, as `str.translate` removes them."""
MAX_GROUPS = 10
"""Largest number of names that an error lists."""


def spelling_key(name: str) -> str:
    r"""Return the key that all spellings of a name share.

    >>> spelling_key(" Cafe\u0301\u200b  Nord") == spelling_key("Caf\u00e9 Nord")
    True
    """
    return " ".join(unicodedata.normalize("NFC", name.translate(WITHOUT_WIDTH)).split())


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
    """
    chosen: dict[str, str] = {}
    for name in known:
        chosen.setdefault(spelling_key(name), name)
    for name in sorted(counts, key=lambda name: (-counts[name], len(name), name)):
        chosen.setdefault(spelling_key(name), tidy(name))
    there = set(known)
    return {name: name if name in there else chosen[spelling_key(name)] for name in counts}


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
    alike = [" and ".join(map(ascii, group)) for group in groups.values() if len(group) > 1]
    if alike:
        more = f"; and {len(alike) - MAX_GROUPS} more" if len(alike) > MAX_GROUPS else ""
        raise DataError(f"{where} has {what} whose names look alike: {'; '.join(alike[:MAX_GROUPS])}{more}: {advice}")
