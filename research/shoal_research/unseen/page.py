"""The tables of the page on unseen data: a row for each run, a row for each set, and how many runs meet each rule."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal_research.claims import check
from shoal_research.definition import Study
from shoal_research.judging import Verdict
from shoal_research.kept import Kept
from shoal_research.unseen.nulls import K_MEANS, MEAN, PRETRAINED, RANDOM, RAW, STANDARDISED, STD, UNTRAINED
from shoal_research.wording import table

NULLS = {RANDOM: "random", RAW: "raw", STANDARDISED: "standardised", UNTRAINED: "untrained", PRETRAINED: "frozen"}
"""Heads of the columns with null baselines."""
NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?")
"""A number in a sentence; none in a name such as `efficientnet-lite0`."""


def runs_table(study: Study, scale: str, one: Kept) -> str:
    """Return the page's part on a kept result: counts, tables of runs and of baselines, and the runs' reasons."""
    parts = [counts(study, scale, one), table(HEAD, body(study, scale, one), SIDES), baselines(study, one)]
    parts += [reasons(study, one, what) for what in ("method", "verdict")]
    return "\n\n".join(part for part in parts if part)


HEAD = ["set, sites", "ACC", "NMI", "nulls reached", "means reached", "own nulls reached", "verdict", "s"]
SIDES = "lrrllllr"


def counts(study: Study, scale: str, one: Kept) -> str:
    """Return for each rule how many of the planned runs meet it; a run without a number does not."""
    by_rule: dict[str, list[bool]] = {}
    for (_, _, rule), met in rules_met(study, scale, one).items():
        by_rule.setdefault(rule, []).append(met)
    return "\n".join(f"- {rule}: **{sum(met)} of {len(met)} runs**." for rule, met in by_rule.items())


def rules_met(study: Study, scale: str, one: Kept) -> dict[tuple[str, str, str], bool]:
    """Return whether each cell meets each rule, by row, column and rule."""
    rows = one.table(study)
    found = {}
    for claim in study.claims_at(scale):
        quantity = claim.quantities()[0]
        rule = claim.claim.partition(": ")[2]
        verdict = check(study, scale, claim, rows).verdict
        found[quantity.row, quantity.column, rule] = verdict is Verdict.REPRODUCED
    return found


def body(study: Study, scale: str, one: Kept) -> list[list[str]]:
    """Return a row of the table for each planned run."""
    values = {(row.row, row.column, row.metric): row.values[0] for row in one.rows}
    words = {(each.row, each.column): each.words for each in one.words}
    met = rules_met(study, scale, one)
    rules = list(dict.fromkeys(rule for _, _, rule in met))
    failed = {(run.row, run.column) for run in one.failed}
    found = []
    for row, column in planned(study, scale):
        own = {metric: value for (r, c, metric), value in values.items() if (r, c) == (row, column)}
        name = f"{study.rows[row].caption}, {study.columns_at(scale)[column].caption}"
        if not own:
            state = "failed" if (row, column) in failed else "not measured"
            found.append([name, state, *[""] * (len(HEAD) - 2)])
            continue
        about = words.get((row, column), {})
        marks = [met[row, column, rule] for rule in rules]
        found.append([name, *cells(own, about, marks)])
    return found


def cells(own: dict[str, float], about: dict[str, str], marks: Sequence[bool]) -> list[str]:
    """Return the cells of a run after the one with its set and partition.

    Args:
        own: its numbers by metric.
        about: its words.
        marks: whether it meets each of the four rules.
    """
    scores = [share(own.get(name)) for name in ("acc", "nmi")]
    verdict = about.get("verdict", "none")
    *reached, told = marks
    if not told:
        verdict += ", **not told**"
    return [*scores, *map(yes_or_no, reached), verdict, f"{own['seconds']:.0f}"]


def baselines(study: Study, one: Kept) -> str:
    """Return the null baselines of each set: of K-means a single draw, then mean and deviation over repeats."""
    own: dict[str, dict[str, float]] = {}
    for row in one.rows:
        own.setdefault(row.row, {})[row.metric] = row.values[0]
    found = []
    for key in study.rows:
        values = own.get(key, {})
        if RANDOM in values:
            draws = (draw_and_mean(values, name) for name in K_MEANS)
            found.append([study.rows[key].caption, share(values[RANDOM]), *draws])
    if not found:
        return ""
    words = "The null baselines; of K-means one draw, and in brackets mean and deviation over 15 others:"
    head = ["set", NULLS[RANDOM], *(NULLS[name] for name in K_MEANS)]
    return f"{words}\n\n{table(head, found, 'l' + 'r' * (len(head) - 1))}"


def draw_and_mean(values: dict[str, float], name: str) -> str:
    """Return a baseline as a single draw, with mean and deviation over repeats; empty where a set has no such one."""
    if name not in values:
        return ""
    return f"{share(values[name])} ({with_deviation(values.get(name + MEAN), values.get(name + STD))})"


def with_deviation(mean: float | None, deviation: float | None) -> str:
    """Return a mean score with its deviation; empty where there is none."""
    if mean is None or deviation is None:
        return ""
    return f"{mean:.3f} ± {deviation:.3f}"


def planned(study: Study, scale: str) -> list[tuple[str, str]]:
    """Return the keys of all cells of a study, row by row."""
    columns = study.columns_at(scale)
    return [(row, column) for row in study.rows for column in columns if study.runs_at(scale, row, column)]


def share(value: float | None) -> str:
    """Return a score with three digits; empty where there is none."""
    return "" if value is None else f"{value:.3f}"


def yes_or_no(met: bool) -> str:
    """Return whether a rule is met, in a word."""
    return "yes" if met else "**no**"


def reasons(study: Study, one: Kept, what: str) -> str:
    """Return the reasons that runs gave for their method or verdict, with their sets; empty where none did.

    Reasons that differ in numbers alone are one line, with the least and the greatest of each number.

    Args:
        study, one: as of `runs_table`.
        what: method or verdict.
    """
    sentences: dict[str, list[str]] = {}
    sets: dict[str, list[str]] = {}
    for each in one.words:
        reason = each.words.get(f"{what} reason", "")
        if reason and each.row in study.rows:
            words = f"{each.words[what]}: {reason.rstrip('.')}"
            sentences.setdefault(NUMBER.sub("#", words), []).append(words)
            sets.setdefault(NUMBER.sub("#", words), []).append(study.rows[each.row].caption)
    if not sentences:
        return ""
    lines = [f"- {with_ranges(own)} ({', '.join(dict.fromkeys(sets[form]))})." for form, own in sentences.items()]
    return "\n".join([f"Reasons for the {what}, as the runs printed them:", "", *lines])


def with_ranges(sentences: Sequence[str]) -> str:
    """Return sentences that differ in numbers alone as one, with the least and the greatest of each number.

    >>> with_ranges(["79 images a client, of 5,000", "200 images a client, of 5,000"])
    '79 to 200 images a client, of 5,000'
    """
    columns = zip(*(NUMBER.findall(sentence) for sentence in sentences), strict=True)
    ranges = iter([number_range(column) for column in columns])
    return NUMBER.sub(lambda found: next(ranges), sentences[0])


def number_range(numbers: Sequence[str]) -> str:
    """Return the least and the greatest of some numbers, as they are written; one number where they are equal."""
    ordered = sorted(numbers, key=lambda number: float(number.replace(",", "")))
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
