"""The fixtures of the product's tests."""

from tests.conftest import *  # noqa: F403
