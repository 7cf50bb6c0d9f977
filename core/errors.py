"""Errors a user can act on: each names the thing, what was expected and what to do."""


class ShoalError(Exception):
    """Base of every error shown to the user without a traceback."""


class DataError(ShoalError):
    """A data set, file, image or table is missing, wrong or unreadable."""


class PartitionError(ShoalError):
    """A partition cannot be made, or does not fit its data set."""
