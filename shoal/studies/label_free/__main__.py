"""Measure on all tuning sets that the file does not hold, and write the tables of the page. Needs `shoal[encoders]`."""

from __future__ import annotations

from shoal.studies.evidence import tuning_figures
from shoal.studies.kept import DOCS
from shoal.studies.label_free.calibrate import measure_all
from shoal.studies.label_free.tables import write_page

if __name__ == "__main__":
    measure_all()
    write_page(DOCS / "which_method.md", tuning_figures())
