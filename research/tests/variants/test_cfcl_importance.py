"""CF-CL by other importance: macro by counts against cases worked out by hand, and what is pulled by it."""

import pytest
import torch

from shoal.methods.cfcl.selection import macro_probability
from shoal.methods.contract.context import MethodError
from shoal_research.variants.cfcl_importance import macro_by_counts
from tests.methods.cfcl.test_cfcl import pulled_classes


def test_macro_by_hand():
    """Clusters with 2, 1 and 0 candidates and 2, 0 and 3 reserve samples."""
    tx, res = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2, 2, 2])
    share = macro_by_counts(tx, res, 3, "share")
    assert share.tolist() == pytest.approx([0.5 / 1.5, 1 / 1.5, 0])
    # 2 times 1/2, 1 times 1, 0 times 0.
    assert macro_by_counts(tx, res, 3, "sized").tolist() == pytest.approx([0.5, 0.5, 0])
    assert macro_by_counts(torch.tensor([0, 0, 0, 1]), torch.tensor([2]), 3, "sized").tolist() == [0.75, 0.25, 0]
    # As printed: 2 / 2, 1 / 0 taken as 1 / 1, 0 / 3.
    assert macro_by_counts(tx, res, 3, "ratio").tolist() == pytest.approx([0.5, 0.5, 0])


def test_by_fractions_two_hundred_candidates_do_not_drown_twenty_of_a_reserve():
    """Ten clusters of 20 candidates; the reserve's 20 samples lie in two of them.

    Where both have half of the reserve, f / (f + g) is 0.1 / 0.6 against 1 elsewhere: a share of 0.04 of what is
    drawn, where a uniform pull has 0.2. By counts it is 20 / 30 against 1, and a share of 0.14.
    """
    tx, res = torch.arange(200) % 10, torch.arange(20) % 2
    fractions = macro_probability(tx, res, 10)
    share = macro_by_counts(tx, res, 10, "share")
    assert float(fractions[:2].sum()) == pytest.approx((2 / 6) / (2 / 6 + 8))
    assert float(share[:2].sum()) == pytest.approx((4 / 3) / (4 / 3 + 8))


def test_macro_of_one_cluster_and_without_reserve():
    assert macro_by_counts(
        torch.zeros(4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 1, "share"
    ).tolist() == [1]
    nobody = torch.zeros(0, dtype=torch.int64)
    assert macro_by_counts(torch.tensor([0, 1, 1]), nobody, 2, "share").tolist() == [0.5, 0.5]


def test_a_pull_brings_what_the_receiver_lacks(world):
    """24 candidates of either class, and a reserve of 20 of one: n_tx / n_res is about 1.2 and 24."""
    y = world.data.train_y
    lacking = 0
    for lacks, has in ((2, 0), (0, 2)):
        pulled = torch.nonzero(y == has).squeeze(1)[:20]
        lacking += pulled_classes(world, 0, pulled, "cfcl_importance", macro="ratio", heat=(0.0, 0.0)).count(lacks)
    assert lacking >= 18, "of 24 in the two pulls; a uniform draw gives about 12"


def test_a_negative_selection_temperature_is_refused(world):
    with pytest.raises(MethodError, match=r"method\.heat: \[-1\.0, 5\.0\] has a negative number"):
        world.method("cfcl_importance", encoder="pooled-conv", heat=(-1.0, 5.0))
