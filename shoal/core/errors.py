"""Errors a user can act on: each names the thing, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar


class FailureCause(StrEnum):
    """Why work failed, as far as it decides what happens next; hosts send each other its value."""

    MESSAGE_REFUSED = "message_refused"
    """A client's message is not as its method declares it: the client is left out."""
    FILE = "file"
    """A file is missing or damaged, or cannot be written: the work is done again, perhaps on another host."""
    SITE_REFUSES = "site_refuses"
    """A site does not do what it is asked, by its own rules: nothing is tried again, and it is no fault."""
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> FailureCause:
        return cls.OTHER


class ShoalError(Exception):
    """Base of every error shown to the user without a traceback."""

    failure_cause: ClassVar[FailureCause] = FailureCause.OTHER


class DataError(ShoalError):
    """A data set, file, image or table is missing, wrong or unreadable."""


class PartitionError(ShoalError):
    """A partition cannot be made, or does not fit its data set."""


def escaped(text: object) -> str:
    r"""Return a text in which every character that cannot be printed is written as its escape, on one line.

    >>> print(escaped("a\nb"), escaped("Łódź"))
    a\nb Łódź
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def shown(text: object, max_length: int = 60) -> str:
    """Return a name from outside as an error can show it: in quotes where it is long, empty or unprintable."""
    name = str(text)
    if name.isprintable() and name.strip() and len(name) <= max_length:
        return name
    return ascii(name if len(name) <= max_length else f"{name[:max_length]}...")


def short_text(error: BaseException) -> str:
    """Return what another library's exception says, in at most 200 characters; its kind where it says nothing."""
    words = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return "".join(c if c.isprintable() else "?" for c in words)[:200] or type(error).__name__


def first_of(names: Sequence[str], max_names: int = 10) -> str:
    """Return the first names of a list, and the number of the others.

    >>> first_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    text = ", ".join(names[:max_names])
    if len(names) > max_names:
        text += f" and {len(names) - max_names} more"
    return text
