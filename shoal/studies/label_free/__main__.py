"""Measure on all tuning sets; sets that the file holds are not measured again. Needs the extra `encoders`."""

from __future__ import annotations

from shoal.studies.label_free.calibrate import measure_all

if __name__ == "__main__":
    measure_all()
