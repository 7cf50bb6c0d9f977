"""Sums of three waves as a table: a column for each of 64 moments, a row for each recording."""

from __future__ import annotations

import numpy as np

from shoal_research.unseen.samples import Samples

CLASSES = ("slow", "double", "beat", "saw", "pulse")
WAVES = {
    "slow": ((1, 1.0, 0.0), (2, 0.5, 0.8), (3, 0.3, 1.6)),
    "double": ((2, 1.0, 0.0), (4, 0.5, 1.2), (1, 0.3, 2.0)),
    "beat": ((5, 0.8, 0.3), (6, 0.8, 0.3), (1, 0.3, 0.0)),
    "saw": ((1, 0.9, 1.6), (3, 0.6, 1.6), (5, 0.5, 1.6)),
    "pulse": ((3, 0.8, 0.0), (1, 0.6, 3.0), (7, 0.5, 0.5)),
}
"""Cycles, amplitude and phase in radians of the three waves of a family."""
MOMENTS = 64
PHASE_DEVIATION = 0.9
AMPLITUDE_DEVIATION = 0.2
NOISE = 0.8


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one recording of 64 moments for each label."""
    rows = np.stack([recording(CLASSES[each], generator) for each in label])
    return Samples(rows, label, CLASSES, tuple(f"t{moment:02}" for moment in range(MOMENTS)))


def recording(family: str, generator: np.random.Generator) -> np.ndarray:
    """Return a sum of a family's waves, float64 (64,): shifted, amplified, on a level of its own, with noise."""
    time = 2 * np.pi * np.arange(MOMENTS) / MOMENTS
    shift = generator.normal(0, PHASE_DEVIATION)
    total = generator.normal(0, 0.3) + generator.normal(0, NOISE, MOMENTS)
    for cycles, amplitude, phase in WAVES[family]:
        own = amplitude * np.exp(generator.normal(0, AMPLITUDE_DEVIATION))
        total += own * np.sin(cycles * time + phase + shift + generator.normal(0, 0.2))
    return total
