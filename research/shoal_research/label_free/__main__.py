"""Measure on all tuning sets that the file does not hold, and write the pages' tables. Needs the packaged encoder."""

from __future__ import annotations

from shoal_research.label_free.calibrate import measure_all
from shoal_research.label_free.tables import tuning_figures, write_pages

if __name__ == "__main__":
    measure_all()
    write_pages(tuning_figures())
