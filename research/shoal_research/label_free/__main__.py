"""Measure on all tuning sets that the file does not hold, and write the pages' tables. Needs the packaged encoder."""

from __future__ import annotations

from shoal_research.evidence import tuning_figures
from shoal_research.kept import PRODUCT_DOCS
from shoal_research.label_free.calibrate import measure_all
from shoal_research.label_free.tables import write_pages

if __name__ == "__main__":
    measure_all()
    write_pages(PRODUCT_DOCS, tuning_figures())
