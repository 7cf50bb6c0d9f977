"""The attack of a curious server: single rows of one client, from numbers and sums of groups of its rows.

The server knows the centres by which a client's rows fall into groups, and from each message the number of rows in
each group and their sum. Two groups whose numbers differ by one, the smaller within the larger, differ by a row;
messages are of several starts and iterations. What a client holds back because a group is too small follows from its
total.

The server does not know which group lies within which. It keeps a difference that fits every message: it lies where the
larger group is and the smaller is not, and in each message the mean of the other rows of its group lies in the cell of
that group, since cells of nearest centres are convex. Rows that are known, first those that most pairs of groups
agree on, are subtracted from all groups that they fall into, until nothing new follows.

Symbols in shapes: n rows, m rows that were read, g groups of a message, k columns, c centres.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EXACT = 1e-7
"""Values that differ by less than this share of the size of a row are the same but for rounding."""
AGREEING = (4, 3, 2, 1)
"""How many pairs of groups must agree on a row, first the surest rows; none is kept of more than there can be."""
PAIRS = 1 << 16
"""Differences that are compared with the centres at once."""


@dataclass(frozen=True)
class Groups:
    """The groups of one message, into which its centres divide a client's rows.

    Attributes:
        counts: float64 (g,), the rows in each group.
        sums: float64 (g, k).
        centres: float64 (c, k).
        of_centre: the group of each centre, int (c,); g where its rows are in no known group. Centres whose groups
            were held back have one group.
    """

    counts: np.ndarray
    sums: np.ndarray
    centres: np.ndarray
    of_centre: np.ndarray

    def holding(self, rows: np.ndarray) -> np.ndarray:
        """Return the group of each row (m, k), int (m,)."""
        squared = (self.centres**2).sum(1) - 2 * rows @ self.centres.T
        return np.asarray(self.of_centre[squared.argmin(1)])

    def without(self, rows: np.ndarray) -> Groups:
        """Return what is left of the groups without rows that are known (m, k)."""
        member = np.eye(len(self.counts) + 1)[self.holding(rows)][:, :-1]
        return Groups(self.counts - member.sum(0), self.sums - member.T @ rows, self.centres, self.of_centre)

    def fit(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each of some rows (m, k) can be one of the client's, bool (m,)."""
        group = self.holding(rows)
        known = group < len(self.counts)
        place = np.minimum(group, len(self.counts) - 1)
        others = self.counts[place] - 1
        mean = (self.sums[place] - rows) / np.maximum(others, 1)[:, None]
        convex = np.bincount(self.of_centre, minlength=len(self.counts) + 1)[group] == 1
        misplaced = convex & (others > 0) & (self.holding(mean) != group)
        fitting: np.ndarray = ~known | ((others >= 0) & ~misplaced)
        return fitting


class Sent(NamedTuple):
    """Groups of a client's rows as it sent them, 0 for groups that it holds back.

    Attributes:
        counts: (c,), float64.
        sums: (c, k), float64.
        centres: (c, k), by which rows fell into the groups; None: they are not known.
    """

    counts: np.ndarray
    sums: np.ndarray
    centres: np.ndarray | None

    @property
    def whole(self) -> bool:
        """Whether the numbers of rows are whole: soft groups and draws that stand for all rows have others."""
        return bool((np.abs(self.counts - self.counts.round()) < EXACT).all())

    def without_offset(self, samples: int, total: np.ndarray) -> Sent | None:
        """Return the groups as they are without the offset that the client subtracted; None where rows are held back.

        What all groups add up to tells the offset, given the sum of all n rows (k,).
        """
        if round(self.counts.sum()) != samples:
            return None
        offset = (total - self.sums.sum(0)) / samples
        centres = None if self.centres is None else self.centres + offset
        return Sent(self.counts, self.sums + self.counts[:, None] * offset, centres)

    def groups(self, samples: int, total: np.ndarray | None) -> Groups:
        """Return the groups, with one of the rows that were held back where the sum of all n rows is known (k,)."""
        shown = np.flatnonzero(self.counts > 0)
        counts = self.counts[shown]
        sums = self.sums[shown]
        of_centre = np.full(len(self.counts), len(shown))
        if total is not None:
            rest = samples - round(counts.sum())
            counts = np.append(counts, rest)
            sums = np.concatenate([sums, [(total - sums.sum(0)) * (rest > 0)]])
        if self.centres is None:
            return Groups(counts, sums, self.sums, np.full(len(self.counts), len(counts)))
        of_centre[shown] = np.arange(len(shown))
        return Groups(counts, sums, self.centres, of_centre)


def read_rows(samples: int, sent: Sequence[Sent], total: np.ndarray | None = None) -> np.ndarray:
    """Return the rows of a client that a server reads, float64 (m, k).

    Args:
        samples: n, the number of the client's rows.
        sent: all groups that the client sent; those with numbers that are not whole are left out.
        total: the sum of all its rows (k,), where the server knows it otherwise than from groups.
    """
    whole = distinct([one for one in sent if one.whole])
    if not whole:
        return np.empty((0, sent[0].sums.shape[1] if sent else 0))
    if total is None:
        total = next((one.sums.sum(0) for one in whole if round(one.counts.sum()) == samples), None)
    else:
        whole = without_offsets(samples, total, whole)
    groups = [one.groups(samples, total) for one in whole]
    groups = [one for one in groups if len(one.counts)]
    rows = np.empty((0, whole[0].sums.shape[1]))
    for agreeing in AGREEING:
        new = differences(groups, agreeing)
        while 0 < len(new) <= samples - len(rows):
            rows = np.concatenate([rows, new])
            groups = [one.without(new) for one in groups]
            new = differences(groups, agreeing)
    return rows


def without_offsets(samples: int, total: np.ndarray, sent: Sequence[Sent]) -> list[Sent]:
    """Return groups of rows as they are, where a client may have subtracted an offset of its own in each message."""
    complete = [(one, plain) for one in sent if (plain := one.without_offset(samples, total)) is not None]
    if all(np.allclose(one.sums, plain.sums, atol=1e-6) for one, plain in complete):
        return list(sent)
    return distinct([plain for _, plain in complete])


def distinct(sent: Sequence[Sent]) -> list[Sent]:
    """Return the groups without those that are the same as earlier ones, as of K-means that stands still."""
    size = max((np.abs(one.sums).max(initial=0.0) for one in sent), default=0.0) or 1.0
    return list({(one.counts.tobytes(), (one.sums / size).round(9).tobytes()): one for one in sent}.values())


def differences(messages: Sequence[Groups], agreeing: int) -> np.ndarray:
    """Return the rows (m, k) by which two groups differ, each once, that fit all messages, and groups of one row.

    Args:
        messages: the groups, less the rows that are known.
        agreeing: number of pairs of groups that must give a row, unless it is a group of its own.
    """
    counts = np.concatenate([one.counts for one in messages]).round()
    sums = np.concatenate([one.sums for one in messages])
    message = np.concatenate([np.full(len(one.counts), place) for place, one in enumerate(messages)])
    group = np.concatenate([np.arange(len(one.counts)) for one in messages])
    size = np.abs(sums).mean() or 1.0
    _, first = np.unique(np.column_stack([counts, (sums / size).round(6)]), axis=0, return_index=True)
    first = first[counts[first] > 0]
    rows = [sums[first][counts[first] == 1]]
    times = [np.full(len(rows[0]), agreeing)]
    for small, large in pairs_of(counts, first):
        difference = sums[large] - sums[small]
        fitting = lies_in(messages, message[large], group[large], difference)
        fitting &= ~lies_in(messages, message[small], group[small], difference)
        rows.append(difference[fitting])
        times.append(np.ones(int(fitting.sum()), int))
    return fitting_rows(np.concatenate(rows), np.concatenate(times), messages, agreeing)


def pairs_of(counts: np.ndarray, places: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the pairs of groups, smaller and larger, whose numbers of rows differ by one, some at once."""
    for count in np.unique(counts[places]):
        small = places[counts[places] == count]
        large = places[counts[places] == count + 1]
        step = max(1, PAIRS // max(1, len(large)))
        for start in range(0, len(small) if len(large) else 0, step):
            some = small[start : start + step]
            yield np.repeat(some, len(large)), np.tile(large, len(some))


def lies_in(messages: Sequence[Groups], message: np.ndarray, group: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return whether each row (m, k) lies in its group of its message, bool (m,)."""
    inside = np.zeros(len(rows), bool)
    for place in np.unique(message):
        of_it = message == place
        inside[of_it] = messages[place].holding(rows[of_it]) == group[of_it]
    return inside


def fitting_rows(rows: np.ndarray, times: np.ndarray, messages: Sequence[Groups], agreeing: int) -> np.ndarray:
    """Return each of the rows once that came so many times and fit all messages.

    Args:
        rows: (m, k).
        times: how often each counts (m,).
        messages: the groups.
        agreeing: number of times.
    """
    size = np.abs(rows).mean() if rows.size else 1.0
    _, first, which = np.unique((rows / size).round(5), axis=0, return_index=True, return_inverse=True)
    often = np.bincount(which.ravel(), weights=times, minlength=len(first)) >= agreeing
    once: np.ndarray = rows[first[often]]
    for one in messages:
        once = once[one.fit(once)]
    return once
