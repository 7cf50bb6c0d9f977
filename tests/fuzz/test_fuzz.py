"""Some hundreds of broken inputs for every reader; `make fuzz` tries 100,000."""

from __future__ import annotations

import pytest

from shoal.core.errors import DataError
from tests.fuzz.readers import READERS
from tests.fuzz.run import Opened, fuzz, outcome_of, unfit

INPUTS = 100


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS)
def test_broken_inputs_end_in_an_answer_or_a_sentence(reader: str) -> None:
    found = fuzz(reader, seed=1, first=0, count=INPUTS)
    assert found.inputs == INPUTS
    assert not found.first, f"python -m tests.fuzz.run --seed 1 --count 1 --readers {reader!r} --first NUMBER"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("x.csv is broken"), "ValueError in test_fuzz.py"),
        (DataError("it is broken"), "names no file"),
        (DataError(""), "an empty error"),
        (DataError("x.csv holds \x00"), "cannot be printed"),
        (DataError("x.csv " + "9" * 1000), "too long to read"),
        (DataError("x.csv is broken"), None),
    ],
)
def test_what_counts_as_a_sentence(error: Exception, said: str | None) -> None:
    def read(data: bytes) -> None:
        raise error

    refused, wrong = outcome_of(Opened([], read, r"x\.csv"), b"")
    assert refused
    assert wrong is None if said is None else said in str(wrong)
    assert unfit(DataError("y.csv"), r"x\.csv") is not None
