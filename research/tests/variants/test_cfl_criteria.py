"""CFL by other criteria: long updates are cut off, and by default it is CFL."""

import pytest

from shoal.methods.contract.context import MethodError
from tests.methods.cfl.test_cfl import a_round, directions, leaves, start


def test_a_much_longer_update_is_cut_off_at_once(world):
    """Its direction is everybody's, so that no cosine tells it apart."""
    rows = directions(1, 6, 60, noise=0.0) + 1
    rows[4] *= 10
    without = a_round(world.method("cfl"), start(world.method("cfl"), 6), rows)
    assert leaves(without) == [(0, 1, 2, 3, 4, 5)]
    method = world.method("cfl_criteria", outliers=4)
    server = a_round(method, start(method, 6), rows)
    assert leaves(server) == [(0, 1, 2, 3, 5), (4,)]


def test_a_rule_on_lengths_that_would_cut_everybody_off_is_refused(world):
    with pytest.raises(MethodError, match=r"method\.outliers is 0\.5"):
        world.method("cfl_criteria", outliers=0.5)
    assert world.method("cfl_criteria", outliers=0).settings.outliers == 0
