"""The table of what a server reads follows from the kept figures."""

from __future__ import annotations

from shoal_research.server_reads.measure import PAGE, page_with_table


def test_the_table_is_that_of_the_figures() -> None:
    page = PAGE.read_text()
    assert page_with_table(page) == page, "run python -m shoal_research.server_reads.measure"
