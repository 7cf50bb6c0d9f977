"""Clocks: the positions of regularly sampled times, decided without rounding.

A series is regular if its times lie on a line, first + position x distance, up to the accuracy in which they are given.
Positions count from the first time of a series in its set, also for samples that are appended later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from shoal.core.errors import DataError, shown
from shoal.data.intake.times import SECOND, Times, time_text

MIN_UNITS = 2
"""Fewer units between two samples do not tell a gap from an inaccurate time, unless all times are exact."""
_SQUARE_ROOT = 1 << 30
RESAMPLE = "resample it first (docs/data.md, Time series)"


@dataclass(frozen=True)
class Clock:
    """The line on which the times of a series lie; times are nanoseconds since 1970, or the numbers of the column.

    Attributes:
        first: the time of position 0, as a fraction.
        last: the latest time, as a fraction.
        position: the position of `last`; 0 where the series has a single sample.
        unit: the accuracy of times, as a fraction.
    """

    first: str
    last: str
    position: int
    unit: str

    @property
    def begin(self) -> Fraction:
        """The time of position 0."""
        return Fraction(self.first)

    @property
    def distance(self) -> Fraction:
        """The time between two samples; 0 where there is one sample."""
        return (Fraction(self.last) - self.begin) / self.position if self.position else Fraction(0)

    @property
    def tolerance(self) -> Fraction:
        """How far a time may lie from the line: its accuracy, or nothing where that is coarse."""
        unit = Fraction(self.unit)
        return unit if self.distance >= MIN_UNITS * unit else Fraction(0)

    def holds(self, duration: Fraction, length: int) -> bool:
        """Return whether a duration has a number of samples, as far as the distance is known."""
        error = 2 * self.tolerance / self.position
        return abs(duration - length * self.distance) <= length * error

    def positions_from(self, times: np.ndarray, parts: int) -> np.ndarray:
        """Return the position of the first sample at or after each time.

        Args:
            times: Python's whole numbers of 1 / `parts`, object (n,).
            parts: in how many parts a nanosecond, or the unit of a number, is divided.

        Returns:
            Python's whole numbers, object (n,).
        """
        begin = self.begin + min(2 * self.tolerance, self.distance / 2)
        scale = _common(begin, self.distance, Fraction(1, parts))
        result: np.ndarray = -((int(begin * scale) - times * (scale // parts)) // int(self.distance * scale))
        return result


def read_clock(name: str, times: Times, known: Clock | None = None) -> tuple[Clock, np.ndarray]:
    """Return the clock of a series and the position of each of its times, int64 (samples,).

    Args:
        name: of the series, for errors.
        times: ascending.
        known: the clock of the samples of this series that the set has; the new clock goes on from it.

    Raises:
        DataError: two samples have one time, or the series is irregular.
    """
    ticks = times.ticks
    differences = np.diff(ticks)
    if (differences == 0).any():
        moment = _text(int(ticks[int(np.argmin(differences))]) * times.tick, times)
        raise DataError(
            f"series {shown(name)} has two samples at {moment}: name the series of a row with --series-column, or give "
            "times with more digits"
        )
    if known is not None and known.position:
        clock, positions = _continued(known, times, differences)
    else:
        clock, positions = _new(times, differences)
    if known is not None and not known.position:
        clock, positions = _before(known, clock, positions)
    _check_line(name, clock, positions, times)
    return clock, positions


def _new(times: Times, differences: np.ndarray) -> tuple[Clock, np.ndarray]:
    positions = np.zeros(len(times.ticks), dtype=np.int64)
    if len(differences):
        gap = _gaps(differences, times.unit)
        np.cumsum(_steps(differences, gap, _longest(times.ticks, gap)), out=positions[1:])
    first, last = (str(int(times.ticks[place]) * times.tick) for place in (0, -1))
    return Clock(first, last, int(positions[-1]), str(times.unit * times.tick)), positions


def _continued(known: Clock, times: Times, differences: np.ndarray) -> tuple[Clock, np.ndarray]:
    """Return the clock of a series with later or earlier samples, and their positions."""
    begin = int(times.ticks[0]) * times.tick
    last = int(times.ticks[-1]) * times.tick
    start = known.position + round((begin - Fraction(known.last)) / known.distance)
    positions = np.full(len(times.ticks), start, dtype=np.int64)
    everywhere = np.ones(len(differences), dtype=bool)
    positions[1:] += np.cumsum(_steps(differences, everywhere, known.distance / times.tick))
    clock = replace(known, unit=str(max(Fraction(known.unit), times.unit * times.tick)))
    if last > Fraction(known.last) and positions[-1] > known.position:
        clock = replace(clock, last=str(last), position=int(positions[-1]))
    return clock, positions


def _before(known: Clock, clock: Clock, positions: np.ndarray) -> tuple[Clock, np.ndarray]:
    """Return a clock and positions that count from the single sample that the set has."""
    if not clock.position:
        step = (clock.begin > known.begin) - (clock.begin < known.begin)
        return (replace(known, last=clock.last, position=1) if step > 0 else known), positions + step
    offset = round((clock.begin - known.begin) / clock.distance)
    last = clock.position + offset
    return (replace(clock, first=known.first, position=last) if last > 0 else known), positions + offset


def _gaps(differences: np.ndarray, unit: int) -> np.ndarray:
    """Return which differences are gaps: above the median by more than half of it, and by more than one unit."""
    median = int(np.partition(differences, len(differences) // 2)[len(differences) // 2])
    excess = differences - median
    return (2 * excess > median) & ((excess > unit) | (median < MIN_UNITS * unit))


def _longest(ticks: np.ndarray, gap: np.ndarray) -> Fraction:
    """Return the distance of samples in the longest stretch without a gap, in ticks."""
    edges = np.concatenate([[0], np.flatnonzero(gap) + 1, [len(ticks)]])
    stretch = int(np.argmax(np.diff(edges)))
    low, high = int(edges[stretch]), int(edges[stretch + 1]) - 1
    return Fraction(int(ticks[high]) - int(ticks[low]), high - low)


def _steps(differences: np.ndarray, gap: np.ndarray, distance: Fraction) -> np.ndarray:
    """Return by how many positions each difference moves on, int64: over a gap the nearest whole number."""
    whole = np.rint(differences / float(distance)).astype(np.int64)
    return np.where(gap, np.maximum(whole, 1), 1)


def _check_line(name: str, clock: Clock, positions: np.ndarray, times: Times) -> None:
    """Refuse times that lie farther from first + position x distance than they are accurate."""
    if not clock.position:
        return
    scaled = (Fraction(clock.last) - clock.begin, clock.begin, clock.tolerance, times.tick)
    scale = _common(*scaled)
    span, begin, tolerance, tick = (int(value * scale) for value in scaled)
    count = clock.position
    whole, rest = divmod(span, count)
    # Products below are at most the square of this; larger ones are computed with Python's whole numbers.
    size = max(count, int(np.abs(positions).max()), tolerance)
    largest = max(abs(int(times.ticks[0])), abs(int(times.ticks[-1]))) * tick + abs(begin) + size * whole
    kind = np.int64 if size < _SQUARE_ROOT and largest < 4 * _SQUARE_ROOT**2 else object
    place = positions.astype(kind)
    off = times.ticks.astype(kind) * tick - begin - place * whole
    near = np.abs(off) <= size + tolerance + 1
    error = np.where(near, off, 0) * count - place * rest
    bad = ~near | (np.abs(error) > tolerance * count)
    if bad.any():
        raise DataError(_irregular(name, clock, positions, times, int(np.argmax(bad))))


def _irregular(name: str, clock: Clock, positions: np.ndarray, times: Times, row: int) -> str:
    """Return what is wrong with a series whose sample does not lie where the others put it."""
    moment = int(times.ticks[row]) * times.tick
    due = clock.begin + int(positions[row]) * clock.distance
    apart, unit, off = (
        length_text(value, dated=times.dated) for value in (clock.distance, Fraction(clock.unit), abs(moment - due))
    )
    words = f"series {shown(name)} is irregular: its samples are {apart} apart in the mean"
    if clock.distance < MIN_UNITS * Fraction(clock.unit):
        return f"{words}, and its times are given in steps of {unit}: give more digits, or {RESAMPLE}"
    return f"{words}, and the one at {_text(moment, times)} lies {off} from its place: {RESAMPLE}"


def _text(time: Fraction, times: Times) -> str:
    return time_text(time, dated=times.dated, zone=times.zone)


def length_text(duration: Fraction, *, dated: bool) -> str:
    """Return a duration in words, to six digits.

    >>> length_text(Fraction(2_500_000_000), dated=True), length_text(Fraction(1, 3), dated=False)
    ('2.5 seconds', '0.333333')
    """
    return f"{float(duration / SECOND):g} seconds" if dated else f"{float(duration):g}"


def _common(*values: Fraction) -> int:
    """Return the smallest number that makes all fractions whole."""
    return int(np.lcm.reduce(np.array([value.denominator for value in values], dtype=object)))
