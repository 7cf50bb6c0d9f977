"""Claims on seeds that come in stages: their rate of error, and when they stop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_claims import row, study

from shoal_research.cells import cells
from shoal_research.claims import CheckedClaim, check
from shoal_research.definition import Study
from shoal_research.judging import Verdict
from shoal_research.sequential import STAGES, errors_at, next_stage, spent
from tests.sources import ROOT

NULL_STUDIES = 10_000


def staged(claim: dict[str, Any] | None = None, looked_for: float | None = None) -> Study:
    """Return the toy study with seeds in stages."""
    changes = {"looked_for": {"acc": looked_for}} if looked_for else {}
    return study(claim=claim, scales={"cpu": {"about": "a toy", "seeds": "staged"}}, **changes)


def judged(toy: Study, differences: list[float]) -> CheckedClaim:
    """Return the claim on rows a and b that differ by so much on each seed."""
    rows = [row("a", differences), row("b", [0.0] * len(differences))]
    return check(toy, "cpu", toy.claims[0], rows)


def verdicts(studies: int, looked_for: float | None, draw: Any) -> Counter[Verdict]:
    """Return how often each verdict comes, where every study may use all of its seeds."""
    toy = staged(looked_for=looked_for)
    return Counter(judged(toy, list(draw(STAGES[-1]))).verdict for _ in range(studies))


def null_shares(studies: int) -> dict[str, float]:
    """Return the share of false `reproduced`, by distribution of the differences and what is looked for."""
    rng = np.random.default_rng(48)
    drawn = {
        "normal": rng.standard_normal,
        "heavy tails": lambda count: rng.standard_t(3, count),
        "skewed": lambda count: 1.0 - rng.exponential(1.0, count),
    }
    found = {}
    for name, draw in drawn.items():
        for looked_for in (None, 1.0):
            counts = verdicts(studies, looked_for, draw)
            found[f"{name}, {looked_for}"] = counts[Verdict.REPRODUCED] / studies
    return found


def test_the_shares_of_the_looks_add_up() -> None:
    shares = [float(stats.t.sf(errors_at(stage), stage - 1)) for stage in STAGES]
    assert sum(shares) == pytest.approx(0.025)
    assert spent(STAGES[-1]) == pytest.approx(0.025)
    assert shares == sorted(shares), "early looks are strict"
    assert [next_stage(seeds) for seeds in (0, 3, 5, 10, 20)] == [3, 10, 10, 20, None]


def test_few_null_studies_are_reproduced() -> None:
    shares = null_shares(1000)
    assert shares["normal, None"] <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1000)
    assert shares["normal, None"] > 0.01, "the rule is not void"


@pytest.mark.slow
def test_of_10_000_null_studies_at_most_two_and_a_half_in_a_hundred_are_reproduced() -> None:
    shares = null_shares(NULL_STUDIES)
    assert shares["normal, None"] <= 0.025
    assert shares["normal, 1.0"] <= 0.025
    assert shares["heavy tails, None"] <= 0.025
    words = (ROOT / "research" / "docs" / "results.md").read_text()
    for name in ("normal", "heavy tails", "skewed"):
        worst = max(shares[f"{name}, {looked_for}"] for looked_for in (None, 1.0))
        assert f"{100 * worst:.2f} %" in words, (name, worst)


def test_a_large_difference_stops_early_and_keeps_its_verdict() -> None:
    """The next ten seeds would say something else: they are not looked at."""
    early = [5.0, 5.01, 4.99]
    found = judged(staged(), early)
    assert (found.verdict, found.seeds, found.settled) == (Verdict.REPRODUCED, 3, True)
    found = judged(staged(), [*early, *[-5.0, -4.0, -6.0] * 6])
    assert (found.verdict, found.of_seeds) == (Verdict.REPRODUCED, (0, 1, 2))


def test_a_look_that_is_not_settled_asks_for_the_next() -> None:
    found = judged(staged(), [1.0, -1.0, 0.5])
    assert (found.verdict, found.settled, found.note) == (Verdict.UNDECIDED, False, "3 of up to 20 seeds")
    found = judged(staged(), [1.0, -1.0, 0.5] * 4)
    assert (len(found.of_seeds), found.settled) == (10, False), "twelve seeds are there, and ten are a look"
    found = judged(staged(), [1.0, -1.0, 0.5] * 7)
    assert (len(found.of_seeds), found.settled) == (20, True), "at the cap"


def test_a_look_that_sees_less_than_is_looked_for_is_the_last() -> None:
    noise = [1.0, -1.0, 0.5, -0.5, 0.2, -0.2, 0.8, -0.8, 0.1, -0.1]
    assert judged(staged(looked_for=0.5), noise).settled is False
    found = judged(staged(looked_for=5.0), noise)
    assert (found.verdict, found.settled) == (Verdict.UNSEEN, True)


def test_fewer_seeds_than_the_first_look_settle_nothing() -> None:
    found = judged(staged(), [5.0, 5.0])
    assert (found.verdict, found.note) == (Verdict.MISSING, "2 of 3 seeds")


def test_a_claim_on_every_seed_runs_to_the_cap_unless_a_seed_refutes_it() -> None:
    claim = {"right": 1, "op": ">=", "every_seed": True}
    found = judged(staged(claim), [1.0] * 3)
    assert (found.verdict, found.settled) == (Verdict.UNDECIDED, False)
    assert judged(staged(claim), [1.0] * 20).seeds == 20
    found = judged(staged(claim), [1.0, 0.0, 1.0])
    assert (found.verdict, found.settled) == (Verdict.OPPOSITE, True)


def test_a_planned_number_keeps_the_plain_interval() -> None:
    toy = study(seeds=4)
    rows = [row("a", [1.0, 1.1, 0.9, 1.0]), row("b", [0.0] * 4)]
    assert check(toy, "cpu", toy.claims[0], rows).verdict is Verdict.REPRODUCED
    one_row = study(scales={"cpu": {"about": "", "seeds": "staged", "rows": {"a": {"seeds": 4}}}})
    assert check(one_row, "cpu", one_row.claims[0], rows).seeds == 4, "the rule of the row with a number"


def test_seeds_that_were_looked_at_before_the_rule_do_not_count() -> None:
    toy = study(scales={"cpu": {"about": "a toy", "seeds": "staged", "first_seed": 4}})
    old = [5.0, 5.01, 4.99, 5.0]
    assert judged(toy, old).verdict is Verdict.MISSING
    found = judged(toy, [*old, 1.0, -1.0, 0.5])
    assert (found.of_seeds, found.verdict) == ((4, 5, 6), Verdict.UNDECIDED)
    assert [cell.seed for cell in cells(toy, "cpu", None) if cell.row.key == "a"] == [4, 5, 6]
