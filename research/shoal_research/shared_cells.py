"""Kept cells, which all studies share: numbers are found by the settings of a cell and its seed, not by its study.

A row may get another key, and a study may compare cells that another study has measured. Metrics of runs are shared.
Of derived metrics only those are that both studies list under `shared`: they depend on one run alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from shoal_research.definition import Study, load_study, study_names
from shoal_research.digests import digests
from shoal_research.kept import DOCS, Kept, kept_folder, load_kept
from shoal_research.rows import Measured, StudyRow, study_row
from shoal_research.sequential import STAGES

Values = dict[str, dict[int, float]]
"""Values of a cell by metric and seed, in the unit of the study that asks."""


def kept_table(study: Study, scale: str, docs: Path = DOCS) -> list[StudyRow]:
    """Return the rows of a study at a scale with today's captions, from the kept cells of all studies.

    A cell that is kept with other settings than today's is shown under its name, as long as no cell of today has them.
    """
    own = load_kept(study.name, scale, docs)
    columns = study.columns_at(scale)
    found = []
    for row, column, metric, values in kept_values(study, scale, own, docs):
        cell = Measured(study.rows[row], columns[column], ())
        found.append(study_row(study, cell, metric, list(values.values()), list(values)))
    if own is not None:
        found += rows_without_seeds(study, own)
    return found


def kept_values(
    study: Study, scale: str, own: Kept | None, docs: Path
) -> Iterator[tuple[str, str, str, dict[int, float]]]:
    """Yield row, column, metric and values by seed of each cell of a study."""
    today = digests(study, scale, own.overrides if own else {})
    others = list(other_results(study, docs))
    for place, digest in today.items():
        row, column = place.split("/")
        values = cell_values(study, own, others, digest, seeds_allowed(study, scale, row))
        if not values and own is not None and own.digests.get(place) not in set(today.values()):
            values = own_values(own, place)
        for metric, by_seed in values.items():
            yield row, column, metric, dict(sorted(by_seed.items()))


def cell_values(
    study: Study, own: Kept | None, others: list[tuple[Study, Kept]], digest: str, allowed: range
) -> Values:
    """Return the values of the cell with a digest, those of the study's own result first.

    Args:
        study: that asks.
        own: its kept result, if there is one.
        others: the other studies with a kept result.
        digest: of the settings of the cell.
        allowed: seeds that other results may add.
    """
    found: Values = {}
    if own is not None:
        for place in places_of(own, digest):
            found.update(own_values(own, place))
    for other, kept in others:
        for place in places_of(kept, digest):
            for metric, by_seed in lent_values(study, other, kept, place).items():
                into = found.setdefault(metric, {})
                into.update({seed: by_seed[seed] for seed in by_seed if seed not in into and seed in allowed})
    return {metric: by_seed for metric, by_seed in found.items() if by_seed}


def seeds_allowed(study: Study, scale: str, row: str) -> range:
    """Return the seeds on which a row is judged, which are all that other results may add."""
    first = study.scales[scale].first_seed
    planned = study.seeds_at(scale, row)
    if isinstance(planned, int):
        return range(first, first + planned)
    return range(first, first + STAGES[-1])


def lent_values(study: Study, other: Study, kept: Kept, place: str) -> Values:
    """Return the values of a cell of another study's kept result that a study shares, in its unit."""
    found = {}
    for metric, by_seed in own_values(kept, place).items():
        factor = shared_factor(study, other, metric)
        if factor is not None:
            found[metric] = {seed: value * factor for seed, value in by_seed.items()}
    return found


def places_of(kept: Kept, digest: str) -> list[str]:
    """Return the cells of a kept result, as `row/column`, with a digest."""
    return [place for place, each in kept.digests.items() if each == digest]


def own_values(kept: Kept, place: str) -> Values:
    """Return the values of a cell of a kept result."""
    return {
        row.metric: dict(zip(row.seeds, row.values, strict=True))
        for row in kept.rows
        if f"{row.row}/{row.column}" == place and row.seeds
    }


def shared_factor(study: Study, other: Study, metric: str) -> float | None:
    """Return what a number of another study is multiplied by; None where the two do not share the metric."""
    if metric in study.metrics and metric in other.metrics:
        return {(True, False): 100.0, (False, True): 0.01}.get((study.percent, other.percent), 1.0)
    if study.system == other.system and metric in study.shared and metric in other.shared:
        return 1.0
    return None


def other_results(study: Study, docs: Path) -> Iterator[tuple[Study, Kept]]:
    """Yield every other study with its kept results."""
    names = set(study_names())
    for file in sorted(kept_folder(docs).glob("*.json")):
        name, _, scale = file.stem.rpartition("-")
        if name in names and name != study.name:
            kept = load_kept(name, scale, docs)
            if kept is not None:
                yield loaded(name), kept


@functools.cache
def loaded(name: str) -> Study:
    """Return a study, which is read once in a process."""
    return load_study(name)


def rows_without_seeds(study: Study, own: Kept) -> list[StudyRow]:
    """Return the rows of a study's own result that have one number for all seeds."""
    return [row for row in own.table(study) if not row.of_seeds]


def lenders(study: Study, scale: str, docs: Path = DOCS) -> dict[str, list[str]]:
    """Return the cells that a study's own result lacks and other studies have, as `row/column`, by study."""
    own = load_kept(study.name, scale, docs)
    if own is None:
        return {}
    today = digests(study, scale, own.overrides)
    found: dict[str, list[str]] = {}
    for place, digest in today.items():
        if places_of(own, digest):
            continue
        for other, kept in other_results(study, docs):
            if places_of(kept, digest) and any(metric in other.metrics for metric in study.metrics):
                found.setdefault(other.name, []).append(place)
                break
    return found
