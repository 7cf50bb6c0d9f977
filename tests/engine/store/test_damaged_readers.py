"""The short version of `python -m tests.chaos --damage`: one damaged file for every reader of a finished run."""

from __future__ import annotations

import pytest

from tests.chaos.damage import (
    DAMAGES,
    DIFFERENT,
    REFUSED,
    SAME,
    TRACEBACK,
    UNCLEAR,
    Damaged,
    Ground,
    judge,
    table,
    tries,
)
from tests.chaos.damage_readers import READERS


@pytest.mark.slow
def test_every_reader_answers_as_before_or_refuses(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("damage")
    monkeypatch.setenv("SHOAL_HOME", str(folder / "home"))
    for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    own = [reader for reader in READERS if "own set" not in reader]
    found = tries(Ground(folder), len(own), 4, own)
    assert len(found) == len(own)
    assert {each.outcome for each in found} <= {SAME, REFUSED}, table(found)


@pytest.mark.parametrize(
    ("code", "said", "wrong", "outcome"),
    [
        (0, "7", "", SAME),
        (0, "8", "", DIFFERENT),
        (1, "", "error run x: file y is damaged", REFUSED),
        (1, "", "error " + "x" * 2000, UNCLEAR),
        (139, "", "", UNCLEAR),
        (70, "", "Traceback (most recent call last)", TRACEBACK),
    ],
)
def test_what_counts_as_right(code, said, wrong, outcome):
    assert judge(code, said, wrong, "7") == outcome


def test_the_table_counts_by_reader():
    found = [Damaged("predict", "flipped", "a", outcome, "") for outcome in (SAME, REFUSED, DIFFERENT)]
    assert table(found).splitlines()[2:] == ["| predict | 3 | 1 | 1 | 1 | 0 | 0 |", "| all | 3 | 1 | 1 | 1 | 0 | 0 |"]
    assert set(DAMAGES) == {"flipped", "truncated", "deleted", "emptied", "swapped"}
