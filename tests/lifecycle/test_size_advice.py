"""Sizes of photos: suggested for large images alone, with a time measured for each."""

from __future__ import annotations

import re

import pytest

from shoal.lifecycle.size_advice import LARGE_SIDE, size_advice


def test_small_images_keep_their_size() -> None:
    assert size_advice((3, LARGE_SIDE, LARGE_SIDE)) == ""


@pytest.mark.long
def test_each_size_has_a_measured_time() -> None:
    advice = size_advice((3, 240, 300))
    found = re.findall(r"([0-9]+) s at ([0-9]+x[0-9]+)", advice)
    assert [size for _, size in found] == ["240x300", "179x224", "102x128"]
    assert "--size 102x128" in advice
    assert all(int(seconds) > 0 for seconds, _ in found)
