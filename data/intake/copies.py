"""The held-out part of new samples: copies of one image lie on one side of it, else the model has seen test samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.streams import Streams
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet

MIN_TRAIN = 2
"""Smallest number of training samples of each client: with fewer it could not train."""
COPY = "copy of another image"
ON_ONE_SIDE = f"{COPY}, on the same side of the test part"
ON_BOTH_SIDES = f"{COPY}, on the other side of the test part, since its client has nothing else to train on"


@dataclass(frozen=True)
class Copies:
    """The samples of a batch that are copies of others.

    Attributes:
        first: int64 (n,): the row of the first sample of the batch with the same values; its own row for a new sample.
        in_test: by row, for each sample that the set has already, whether it lies in the test part.
    """

    first: np.ndarray
    in_test: dict[int, bool]

    def groups(self) -> dict[int, list[int]]:
        """Return the rows of each sample that the set lacks, by the first of them."""
        groups: dict[int, list[int]] = {}
        for row, first in enumerate(self.first.tolist()):
            if row not in self.in_test:
                groups.setdefault(first, []).append(row)
        return groups


def find_copies(x: np.ndarray, onto: PreparedSet | None = None) -> Copies:
    """Find equal samples.

    Args:
        x: samples (n, ...).
        onto: the set to append to; a sample that it has in both parts counts as training.

    >>> find_copies(np.array([[7], [8], [7], [9]], dtype=np.uint8)).first.tolist()
    [0, 1, 0, 3]
    """
    rows: dict[bytes, int] = {}
    digests = [_digest(sample) for sample in x]
    first = np.array([rows.setdefault(digest, row) for row, digest in enumerate(digests)], dtype=np.int64)
    side: dict[bytes, bool] = {}
    if onto is not None:
        for part, is_test in ((onto.test_x, True), (onto.train_x, False)):
            side |= {_digest(sample): is_test for sample in (() if part is None else part)}
    return Copies(first, {row: side[digest] for row, digest in enumerate(digests) if digest in side})


def draw_test_part(
    copies: Copies, owner: np.ndarray, share: float, seed: int, trained: np.ndarray, before: int = 0
) -> np.ndarray:
    """Draw a share of each client's samples, bool (n,), all copies of a sample or none.

    Samples that the set has already decide for their copies, as long as each client keeps `MIN_TRAIN` to train on.

    Args:
        copies: of the samples.
        owner: int64 (n,): the client of each sample.
        share: of the samples, in [0, 1).
        seed: of the draw.
        trained: int64 (clients,): the number of training samples that each client has already.
        before: number of samples of the set.
    """
    purpose = f"own test part after {before}" if before else "own test part"
    counts = np.bincount(owner, minlength=len(trained))
    most = np.maximum(counts - np.maximum(MIN_TRAIN - trained, 0), 0)
    wanted = [_count(n * share, Streams(seed, client=k).numpy(f"size of {purpose}")) for k, n in enumerate(counts)]
    limit = np.minimum(most, wanted)
    groups = copies.groups()
    in_test = np.zeros(len(owner), dtype=bool)
    taken = np.zeros(len(trained), dtype=np.int64)

    def hold_out(rows: list[int], limit: np.ndarray) -> None:
        owners, numbers = np.unique(owner[rows], return_counts=True)
        if (taken[owners] + numbers <= limit[owners]).all():
            in_test[rows] = True
            taken[owners] += numbers

    for row, was_in_test in copies.in_test.items():
        if was_in_test:
            hold_out([row], most)
    for client in range(len(trained)):
        rows = [row for row in np.flatnonzero(owner == client).tolist() if row in groups]
        for row in Streams(seed, client=client).numpy(purpose).permutation(rows):
            hold_out(groups[row], limit)
    return in_test


def _count(share: float, rng: np.random.Generator) -> int:
    """Return a share of samples as a whole number; a share of less than one half is one sample now and then."""
    return round(share) or int(rng.random() < share)


def note_copies(intake: Intake, copies: Copies, held_out: np.ndarray, files: Sequence[str], *, split: bool) -> None:
    """Note each copy and its original.

    Args:
        intake: the notes.
        copies: of the samples.
        held_out: bool (n,): which samples are held out.
        files: the name of each sample.
        split: whether there is a test part.
    """
    what = ON_ONE_SIDE if split else COPY
    for row, first in enumerate(copies.first):
        in_test = copies.in_test.get(row)
        if in_test is not None:
            apart = bool(held_out[row]) != in_test
            intake.note(ON_BOTH_SIDES if apart else what, files[row], "of an image that the set had before")
        elif first != row:
            intake.note(what, files[row], f"of {files[first]}")


def _digest(sample: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(sample).data, digest_size=16).digest()
