"""Copies of one sample, which must lie on one side of a held-out split: else the model has seen test samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared

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


def find_copies(x: np.ndarray, onto: Prepared | None = None) -> Copies:
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
    in_test: dict[int, bool] = {}
    if onto is not None:
        side: dict[bytes, bool] = {}
        for part, is_test in ((onto.test_x, True), (onto.train_x, False)):
            for sample in () if part is None else part:
                digest = _digest(sample)
                if digest in rows:
                    side[digest] = is_test
        in_test = {row: side[digest] for row, digest in enumerate(digests) if digest in side}
    return Copies(first, in_test)


def on_one_side(held_out: np.ndarray, copies: Copies, owner: np.ndarray, lacking: Sequence[int]) -> np.ndarray:
    """Return a held-out part in which all copies of a sample lie on one side.

    If some copies are training samples, all are. Samples that the set has already decide for their copies.

    Args:
        held_out: bool (n,): which samples are held out, copies or not.
        copies: of these samples.
        owner: int64 (n,): the client of each sample.
        lacking: by client, the smallest number of its samples to train on.
    """
    trained = np.zeros(len(held_out), dtype=bool)
    np.logical_or.at(trained, copies.first, ~held_out)
    together = ~trained[copies.first]
    for known, in_test in copies.in_test.items():
        together[known] = in_test
    for client, minimum in enumerate(lacking):
        rows = np.flatnonzero(owner == client)
        for row in rows:
            if (~together[rows]).sum() >= min(minimum, len(rows)):
                break
            if together[row]:
                together[copies.first == copies.first[row]] = False
    result: np.ndarray = together
    return result


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
