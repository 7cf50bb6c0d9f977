"""Write the pages' tables."""

from __future__ import annotations

from shoal_research.label_free.tables import DOCS, tuning_figures, write_pages

if __name__ == "__main__":
    write_pages(DOCS, tuning_figures())
