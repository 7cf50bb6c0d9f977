"""The calibration without labels: the tables of its pages are those of the kept figures, and the rules hold on them."""

from __future__ import annotations

import pytest

from shoal_research.label_free.tables import (
    DOCS,
    PAGES,
    images_reached,
    page_with_tables,
    tables_reached,
    tuning_figures,
)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_made_from_the_figures(name: str) -> None:
    page = DOCS / name
    assert page_with_tables(page, tuning_figures()) == page.read_text()


def test_the_rules_hold_on_nearly_all_sets_that_they_were_chosen_on() -> None:
    reached = images_reached(tuning_figures()) + tables_reached(tuning_figures())
    assert len(reached) >= 30
    assert reached.count(False) <= 2
    assert sum(each["ratio"] >= 8 for kind in tuning_figures().values() for each in kind.values()) >= 10
