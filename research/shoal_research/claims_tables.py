"""The tables of claims on the pages of results: a row for each claim, or a grid where claims differ in a case only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal_research.judging import Verdict
from shoal_research.number_words import as_written, interval_words, number, sign_of
from shoal_research.verdicts import Entry, published
from shoal_research.wording import table

NUMBER = re.compile(r"(.* )\d+(?:\.\d+)?")
"""A case that ends in a number."""
INTERVAL = re.compile(r"(.*) \(([^()]*\])\)")
"""Why a control fails, and the interval that shows it."""
SEEDS = re.compile(r"(\d+ of (?:up to )?\d+) seeds")
"""A note that some seeds are missing."""
LATE = "†"
"""The mark of a verdict by a rule that was written after the run."""


@dataclass(frozen=True)
class ClaimCells:
    """What a table says of a claim.

    Attributes:
        case: what stands before the first colon of the claim, such as `p = 0.5`; empty where it has none.
        claim: the claim without its case.
        verdict: how it came out, and what limits it; empty where the words above the table say it.
        ours: our number with its interval, in brackets the paper's; empty where nothing was measured.
        seeds: how many seeds there are.
        looked_for: the smallest difference that matters; empty where nobody said.
    """

    case: str
    claim: str
    verdict: str
    ours: str
    seeds: str
    looked_for: str


def claims_tables(found: Sequence[Entry], known: str = "") -> str:
    """Return the tables of the claims of a study at a scale, under what all of them have in common.

    Args:
        found: the claims.
        known: why claims are out of regime, if the page has already said so.
    """
    cells = [cells_of(entry) for entry in found]
    seeds = {each.seeds for each in cells}
    looked_for = {each.looked_for for each in cells if each.looked_for}
    words = ["Claims"]
    if len(seeds) == 1:
        words.append(plural(cells[0].seeds, "seed"))
    if len(looked_for) == 1:
        words.append(f"looking for {next(iter(looked_for))}")
    if len(cells) > 1 and (verdict := verdict_of_all(cells)):
        words.append(f"all {verdict}")
        cells = [replace(each, verdict="") for each in cells]
    parts = notes_above(found, known)
    if len(words) > 1:
        parts.append(f"{', '.join(words)}:")
    in_grid = grid_cells(cells)
    others = [each for each in cells if each not in in_grid]
    if in_grid:
        parts.append(grid(in_grid, len(seeds) > 1, len(looked_for) > 1))
    if others:
        parts.append(rows(others, len(seeds) > 1, len(looked_for) > 1))
    return "\n\n".join(parts)


def notes_above(found: Sequence[Entry], known: str) -> list[str]:
    """Return why claims are out of regime, and what the mark of late rules means, where this is to be said.

    Args:
        found, known: as of `claims_tables`.
    """
    parts = []
    reasons = regime_words(found)
    if reasons and reasons != known:
        parts.append(f"Out of regime: {reasons}.")
    if any(is_late(entry) for entry in found):
        parts.append(f"{LATE} The rule was written after the run.")
    return parts


def regime_words(found: Sequence[Entry]) -> str:
    """Return why claims are out of regime: each control once, with all its intervals; empty where no claim is."""
    controls: dict[str, list[str]] = {}
    for note in dict.fromkeys(entry.checked.note for entry in found if entry.verdict is Verdict.REGIME):
        control = note
        intervals = []
        if there := INTERVAL.fullmatch(note):
            control = there[1]
            intervals = [there[2]]
        controls.setdefault(control, []).extend(intervals)
    return "; ".join(
        f"{control} ({'; '.join(intervals)})" if intervals else control for control, intervals in controls.items()
    )


def grid_cells(cells: Sequence[ClaimCells]) -> list[ClaimCells]:
    """Return the claims that are made for several cases each; empty where a grid of them would be half empty.

    One claim whose cases are longer than it is no grid either.
    """
    cases: dict[str, set[str]] = {}
    for each in cells:
        if each.case:
            cases.setdefault(each.claim, set()).add(each.case)
    found = [each for each in cells if len(cases.get(each.claim, ())) > 1 and each.case]
    claims_found = {each.claim for each in found}
    places = len(claims_found) * len({each.case for each in found})
    long_heads = len(claims_found) == 1 and all(len(each.case) > len(each.claim) for each in found)
    return found if 2 * len(found) >= places and not long_heads else []


def grid(cells: Sequence[ClaimCells], seeds: bool, looked_for: bool) -> str:
    """Return a table with a row for each claim and a column for each case.

    A verdict that a claim has in all its cases has a column of its own.

    Args:
        cells: the claims.
        seeds, looked_for: whether they differ within the study, and so have a column each.
    """
    cases = in_order(list(dict.fromkeys(each.case for each in cells)))
    claims: dict[str, list[ClaimCells]] = {}
    for each in cells:
        claims.setdefault(each.claim, []).append(each)
    verdicts = {claim: verdict_of_all(own) for claim, own in claims.items()}
    with_verdict = any(verdicts.values())
    body = []
    for claim, own in claims.items():
        of_case = {each.case: each for each in own}
        row = [claim, *[verdicts[claim]] * with_verdict]
        row += [case_words(of_case.get(case), bool(verdicts[claim])) for case in cases]
        if seeds:
            row.append(" or ".join(dict.fromkeys(each.seeds for each in own)))
        if looked_for:
            row.append(" or ".join(dict.fromkeys(each.looked_for for each in own if each.looked_for)))
        body.append(row)
    head = ["claim", *["verdict"] * with_verdict, *cases, *["seeds"] * seeds, *["looks for"] * looked_for]
    left = 1 + with_verdict
    return table(head, body, "l" * left + "r" * (len(head) - left))


def verdict_of_all(cells: Sequence[ClaimCells]) -> str:
    """Return the verdict that a claim has in all its cases; empty where they differ, or one has no number."""
    verdicts = {each.verdict for each in cells}
    if len(verdicts) == 1 and all(each.ours for each in cells):
        return verdicts.pop()
    return ""


def case_words(cell: ClaimCells | None, verdict_known: bool) -> str:
    """Return our number for a claim in one case, after the verdict unless that is known; empty without such a case."""
    if cell is None:
        return ""
    if verdict_known:
        return cell.ours
    return f"{cell.verdict}: {cell.ours}".removeprefix(": ").removesuffix(": ")


def in_order(cases: list[str]) -> list[str]:
    """Return cases that differ in a number only, such as `p = 0.5`, by that number; others as they come."""
    numbers = [NUMBER.fullmatch(case) for case in cases]
    if not all(numbers) or len({found[1] for found in numbers if found}) > 1:
        return cases
    return sorted(cases, key=lambda case: float(case.rpartition(" ")[2]))


def rows(cells: Sequence[ClaimCells], seeds: bool, looked_for: bool) -> str:
    """Return a table with a row for each claim, or a line where there is one; the arguments are those of `grid`."""
    if len(cells) == 1:
        return line(cells[0], seeds, looked_for)
    verdicts = any(each.verdict for each in cells)
    body = []
    for each in cells:
        claim = f"{each.case}: {each.claim}" if each.case else each.claim
        row = [claim, *[each.verdict] * verdicts, each.ours, *[each.seeds] * seeds, *[each.looked_for] * looked_for]
        body.append(row)
    head = ["claim", *["verdict"] * verdicts, "ours", *["seeds"] * seeds, *["looks for"] * looked_for]
    left = 1 + verdicts
    return table(head, body, "l" * left + "r" * (len(head) - left))


def line(cell: ClaimCells, seeds: bool, looked_for: bool) -> str:
    """Return a claim as a line; the arguments are those of `grid`."""
    claim = f"{cell.case}: {cell.claim}" if cell.case else cell.claim
    words = [": ".join(filter(None, (claim, cell.verdict, cell.ours)))]
    if seeds:
        words.append(plural(cell.seeds, "seed"))
    if looked_for and cell.looked_for:
        words.append(f"looks for {cell.looked_for}")
    return f"- {', '.join(words)}."


def cells_of(entry: Entry) -> ClaimCells:
    """Return a claim as the cells of a table."""
    checked = entry.checked
    there = checked.interval
    case, colon, claim = entry.claim.claim.partition(": ")
    ours = ""
    if there is not None:
        ours = f"on {checked.met} of {there.seeds}" if checked.every_seed else interval_words(there, checked.bound)
    if ours and (paper := paper_value(entry)):
        ours += f" ({paper})"
    return ClaimCells(
        case if colon else "",
        claim if colon else case,
        verdict_words(entry),
        ours,
        seeds_words(entry),
        as_written(checked.looked_for) if checked.looked_for is not None and not checked.every_seed else "",
    )


def paper_value(entry: Entry) -> str:
    """Return the paper's number for a claim; empty where it prints none."""
    if entry.claim.paper:
        return entry.claim.paper
    value = published(entry)
    return "" if value is None else as_written(value, sign_of(entry.checked.bound))


def holds_on_every_seed(entry: Entry) -> bool:
    """Whether a claim is about each seed, and each of them bears it out."""
    return entry.checked.every_seed and entry.verdict is Verdict.REPRODUCED


def is_noted_above(entry: Entry) -> bool:
    """Return whether what limits a verdict stands above the table."""
    return entry.verdict is Verdict.REGIME or holds_on_every_seed(entry)


def is_late(entry: Entry) -> bool:
    """Return whether a verdict follows from a rule that was written after the run."""
    return entry.later and entry.verdict is not Verdict.MISSING


def verdict_words(entry: Entry) -> str:
    """Return the verdict, and what limits it; missing seeds stand in another column."""
    checked = entry.checked
    there = checked.interval
    if entry.verdict is Verdict.MISSING and there is None:
        return "not measured yet"
    verdict = f"**{entry.verdict}**"
    if is_late(entry):
        verdict += f" {LATE}"
    by_interval = entry.verdict is Verdict.UNDECIDED and not checked.every_seed
    if by_interval and there is not None and there.visible is not None:
        verdict += f" (sees {number(there.visible)})"
    said = is_noted_above(entry) or SEEDS.fullmatch(checked.note)
    marks = [
        checked.note if there is not None and not said else "",
        "settings have changed since" if entry.stale else "",
    ]
    return "; ".join(filter(None, (verdict, *marks)))


def seeds_words(entry: Entry) -> str:
    """Return how many seeds there are, and how many the rule has where it has others."""
    checked = entry.checked
    there = len(checked.of_seeds)
    if found := SEEDS.fullmatch(checked.note):
        return found[1]
    if there < checked.seeds:
        return f"{there} of {checked.seeds}"
    return str(there) if there == checked.seeds else f"{there}, {checked.seeds} planned"


def plural(count: str, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}" if count == "1" else f"{count} {noun}s"
