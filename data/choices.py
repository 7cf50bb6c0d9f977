"""Choices that a command line offers, in a module that imports nothing: help is read more often than images are."""

from typing import Literal

OnBad = Literal["refuse", "skip"]
"""What becomes of images that cannot be read."""
OnOdd = Literal["refuse", "skip", "resize"]
"""What becomes of images of another size."""
