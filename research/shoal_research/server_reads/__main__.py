"""Measure all cases, and write the table of docs/privacy.md."""

from __future__ import annotations

from shoal_research.server_reads.measure import keep
from shoal_research.server_reads.table import PAGE, page_with_table

if __name__ == "__main__":
    keep()
    PAGE.write_text(page_with_table(PAGE.read_text()))
