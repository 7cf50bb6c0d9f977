"""Write the pages' tables from the kept figures."""

from __future__ import annotations

from shoal_research.label_free.tables import tuning_figures, write_pages

if __name__ == "__main__":
    write_pages(tuning_figures())
