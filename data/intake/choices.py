"""Choices of the command line, in a module that imports nothing, so that help appears at once."""

from typing import Literal

OnBad = Literal["refuse", "skip"]
"""The treatment of images that cannot be read."""
OnOdd = Literal["refuse", "skip", "resize"]
"""The treatment of images of another size."""
Missing = Literal["refuse", "mean", "drop-rows"]
"""The treatment of missing values in a table."""
