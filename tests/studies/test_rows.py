"""Rows of a study's table: what has no number has no row."""

import math

from shoal.studies.definition import load_study
from shoal.studies.rows import Measured, measured_rows


def test_seeds_without_a_number_are_left_out() -> None:
    study = load_study("private-updates")
    runs = (
        {"acc": 0.5, "epsilon_sent": math.inf},
        {"acc": 0.7, "epsilon_sent": 2.0, "epsilon_mean": 1.0},
        {"epsilon_sent": 4.0},
    )
    found = measured_rows(study, [Measured(study.rows["clipped"], study.columns["few"], runs, (3, 5, 8))])
    assert {(row.metric, row.mean, row.of_seeds) for row in found} == {
        ("acc", 0.6, (3, 5)),
        ("epsilon_mean", 1.0, (5,)),
        ("epsilon_sent", 3.0, (5, 8)),
    }
