"""A table of measurements in very different units, some of which say nothing about the classes."""

from __future__ import annotations

import numpy as np

from shoal_research.unseen.samples import Samples

CLASSES = ("a", "b", "c", "d", "e", "f")
COLUMNS = (
    "length_mm",
    "mass_t",
    "pressure_pa",
    "voltage_v",
    "share",
    "count",
    "current_ua",
    "height_km",
    "price",
    "noise_hz",
    "drift_ns",
    "offset",
)
UNITS = np.array([10.0, 1e-3, 2e4, 5.0, 0.05, 300.0, 80.0, 0.4, 1500.0, 5e4, 2e3, 12.0])
LEVELS = np.array([120.0, 0.02, 1e5, 230.0, 0.4, 4000.0, 500.0, 2.0, 9000.0, 4e5, 0.0, -3.0])
UNRELATED = 3
"""So many of the last columns are noise; two of them have the largest numbers."""
DISTANCE = 1.75
"""Deviation of the classes' centres in each related column, where samples of a class have deviation 1."""


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one row of 12 measurements for each label."""
    centres = generator.normal(0, DISTANCE, (len(CLASSES), len(COLUMNS)))
    centres[:, -UNRELATED:] = 0.0
    rows = LEVELS + UNITS * (centres[label] + generator.normal(size=(len(label), len(COLUMNS))))
    return Samples(rows, label, CLASSES, COLUMNS)
