"""The table of the page on unseen data: a row for each run, and how many of all planned runs meet each rule."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.studies.claims import check
from shoal.studies.definition import Study
from shoal.studies.judging import Verdict
from shoal.studies.kept import Kept
from shoal.studies.unseen.nulls import PRETRAINED, RANDOM, RAW, STANDARDISED, UNTRAINED
from shoal.studies.wording import table

NULLS = {RANDOM: "random", RAW: "raw", STANDARDISED: "standardised", UNTRAINED: "untrained", PRETRAINED: "frozen"}
"""Heads of the columns with null baselines."""


def runs_table(study: Study, scale: str, one: Kept) -> str:
    """Return the page's part on a kept result: counts, the table of runs, and the reasons that the runs gave."""
    parts = [counts(study, scale, one), table(HEAD, body(study, scale, one), SIDES)]
    parts += [reasons(study, scale, one, what) for what in ("method", "verdict")]
    return "\n\n".join(part for part in parts if part)


HEAD = ["set, sites", "kind", "n", "classes", "ratio", "method", "ACC", "NMI", *NULLS.values()]
HEAD += ["nulls reached", "verdict", "told", "s"]
SIDES = "ll" + "r" * 3 + "l" + "r" * (2 + len(NULLS)) + "lllr"


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
        marks = [yes_or_no(met[row, column, rule]) for rule in rules]
        found.append([name, *cells(own, about, marks)])
    return found


def cells(own: dict[str, float], about: dict[str, str], marks: Sequence[str]) -> list[str]:
    """Return the cells of a run after those of its set and partition.

    Args:
        own: its numbers by metric.
        about: its words.
        marks: whether it meets each of the two rules.
    """
    sizes = [f"{own[name]:.0f}" for name in ("samples", "classes", "ratio")]
    scores = [share(own.get(name)) for name in ("acc", "nmi", *NULLS)]
    kind = about.get("kind", "")
    verdict = about.get("verdict", "none")
    return [
        kind,
        *sizes,
        about.get("method", ""),
        *scores,
        marks[0],
        verdict,
        marks[1],
        f"{own['seconds']:.0f}",
    ]


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


def reasons(study: Study, scale: str, one: Kept, what: str) -> str:
    """Return the distinct reasons that runs gave for their method or verdict, with their sets; empty where none did.

    Args:
        study, scale, one: as of `runs_table`.
        what: method or verdict.
    """
    sets: dict[tuple[str, str], list[str]] = {}
    for each in one.words:
        reason = each.words.get(f"{what} reason", "")
        if reason and each.row in study.rows:
            caption = study.rows[each.row].caption
            sets.setdefault((each.words[what], reason), []).append(caption)
    if not sets:
        return ""
    lines = [
        f"- {word}: {reason.rstrip('.')} ({', '.join(dict.fromkeys(own))})." for (word, reason), own in sets.items()
    ]
    return "\n".join([f"Reasons for the {what}, as the runs printed them:", "", *lines])
