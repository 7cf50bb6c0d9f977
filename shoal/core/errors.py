"""Errors a user can act on: each names the thing, what was expected and what to do."""


class ShoalError(Exception):
    """Base of every error shown to the user without a traceback."""


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


def shown(text: object, most: int = 60) -> str:
    """A name from outside as an error can show it: as it is, or in quotes where it is long, empty or unprintable."""
    name = str(text)
    if name.isprintable() and name.strip() and len(name) <= most:
        return name
    return ascii(name if len(name) <= most else f"{name[:most]}...")


def brief(error: BaseException) -> str:
    """What another library's exception says, in a line of at most 200 characters; its kind where it says nothing."""
    said = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return "".join(c if c.isprintable() else "?" for c in said)[:200] or type(error).__name__
