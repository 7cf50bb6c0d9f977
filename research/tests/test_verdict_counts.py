"""How verdicts are counted, and how many of them may be false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from test_claims import ONE, row, study

from shoal_research.claims import check
from shoal_research.judging import Verdict
from shoal_research.verdict_counts import count, counts_tables, false_discoveries
from shoal_research.verdicts import Entry, standing

BELOW = [9.0, 10.1, 10.9, 12.0]


def entry(verdict: Verdict, **claim: Any) -> Entry:
    """Return a claim of the toy study with a verdict."""
    toy = study(claim=claim)
    checked = check(toy, "cpu", toy.claims[0], [row("a", ONE), row("b", BELOW)])
    return Entry(toy, toy.claims[0], "cpu", replace(checked, verdict=verdict), stale=False, later=False)


def entries(reproduced: int, undecided: int, on_every_seed: int) -> Sequence[Entry]:
    return [
        *[entry(Verdict.REPRODUCED)] * reproduced,
        *[entry(Verdict.UNDECIDED)] * undecided,
        *[entry(Verdict.REPRODUCED, right=1, every_seed=True)] * on_every_seed,
        entry(Verdict.REGIME),
    ]


def test_claims_on_every_seed_are_counted_apart() -> None:
    found = entries(4, 36, 7)
    assert count(found, Verdict.REPRODUCED, every_seed=False) == 4
    assert count(found, Verdict.REPRODUCED, every_seed=True) == 7
    assert count(found, Verdict.REPRODUCED) == 11


def test_false_discoveries_are_of_the_claims_that_an_interval_judges() -> None:
    """2.5 % of 40 is 1 of the 4; neither the seven on every seed nor the one out of its regime counts."""
    words = false_discoveries(entries(4, 36, 7))
    assert words.startswith("40 claims are judged by an interval, and 4 of them are reproduced")
    assert "1.0 would be reproduced all the same: of the 4 at most about 25% are false" in words
    assert "none is reproduced" in false_discoveries(entries(0, 5, 2))


def test_claims_of_papers_and_ours_have_a_table_each() -> None:
    shown = counts_tables({"one": entries(1, 0, 0), "two": [entry(Verdict.OPPOSITE, source="ours")]})
    papers, ours = shown.split("### Claims of ours")
    assert "| one | 1 | 1 |" in papers
    assert "| two |" not in papers
    assert "| two | 1 |" in ours
    assert "| all | 1 |" in ours


def test_a_scale_out_of_its_regime_says_nothing_more_where_another_judges() -> None:
    outside = entry(Verdict.REGIME)
    judged = entry(Verdict.UNDECIDED)
    assert standing([outside, judged]) == [judged]
    assert standing([judged, judged]) == [judged, judged]
    larger = replace(outside, scale="large")
    assert standing([outside, larger]) == [larger]
    assert standing([]) == []
