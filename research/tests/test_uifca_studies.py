"""Simulations of the UIFCA studies at toy size: what they return is what they say."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal_research.definition import Column, Row
from shoal_research.table import Group
from shoal_research.uifca import masks as masks_module
from shoal_research.uifca import overfitting
from shoal_research.uifca.masks import correct, masks
from shoal_research.uifca.overfitting import longer_training
from shoal_research.uifca.simulate import purity_rounds, table1
from shoal_research.uifca.standard_flow import StandardRealNVP

ROUND = {
    "points": 200,
    "dimension": 8,
    "right": 0.7,
    "flow": "tabular",
    "width": 8,
    "epochs": 3,
    "batch": 50,
    "lr": 1e-2,
}


def test_table1_keeps_purity_after_every_round(tmp_path):
    small = {"dimension": 6, "rank": 2, "points": 60, "clusters": 3, "spread": 0.001, "lr": 1e-3, "p": 1.0}
    small |= {"data": "subspace", "method": "uifca", "cluster_rounds": 6, "comm_rounds": 3, "steps": 20}
    found = table1(small, 0, tmp_path)
    assert [f"purity/{t}" in found for t in range(8)] == [True] * 7 + [False]
    assert found["purity/6"] == found["purity"]
    assert found["purity/0"] < 0.6, "a random assignment"
    cell = Group(Row(key="uifca", caption="UIFCA"), Column(key="p_1", caption="p = 1"), {0: found, 1: found})
    purity_rounds(Mock(), [cell], tmp_path)
    assert (tmp_path / "purity-rounds.png").stat().st_size > 5000


@pytest.fixture
def purities(monkeypatch):
    """The purities that a simulation computes: of each epoch, then of the first assignment."""
    seen = []
    score = overfitting.purity
    monkeypatch.setattr(overfitting, "purity", lambda *clusters: seen.append(score(*clusters)) or seen[-1])
    return seen


def test_steps_may_be_equal_where_the_number_of_points_is_not(tmp_path, purities):
    """200 points in two clusters: about 100 for each flow, and 2 or 3 batches of 50 an epoch; 8 of 800."""
    counts = []
    for points in (200, 800):
        longer_training({**ROUND, "points": points, "steps": 18}, 0, tmp_path)
        counts.append(len(purities) - 1)
        purities.clear()
    assert counts[0] in (6, 9)
    assert counts[1] in (2, 3)


def test_a_cluster_round_is_judged_after_every_epoch(tmp_path, purities):
    found = longer_training(ROUND, 0, tmp_path)
    *after, first = purities
    assert found["purity_first"] == first
    assert 0.55 < first < 0.85
    assert len(after) == 3
    assert all(0.5 < value < 0.999 for value in after), "better than chance, and not told by the labels"
    assert (found["purity_best"], found["purity_last"]) == (max(after), after[-1])
    assert 0 <= found["apart"] <= 1
    assert longer_training(ROUND, 0, tmp_path) == found


def digit_set(folder):
    """Two kinds of 8x8 images: a bright left half, a bright right half."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.integers(0, 60, (120, 1, 8, 8))
    x[y == 0, :, :, :4] += 150
    x[y == 1, :, :, 4:] += 150
    x, y = x.astype(np.uint8), (y + 2).astype(np.int64)
    manifest = Manifest("halves", "image", (1, 8, 8), 4, 80, 40, "made here", "none")
    write_prepared(folder, manifest, {"train_x": x[:80], "train_y": y[:80], "test_x": x[80:], "test_y": y[80:]})


@pytest.mark.parametrize("flow", ["cycle", "standard"])
def test_flows_of_two_kinds_of_images_tell_them_apart(tmp_path, monkeypatch, flow):
    digit_set(tmp_path / "halves")
    settings = {"set": "halves", "digits": [2, 3], "images": 40, "flow": flow, "width": 4, "blocks": 1}
    settings |= {"margin": 0.05, "background": False, "epochs": 6, "batch": 20, "lr": 1e-2, "decay": 1.0}
    monkeypatch.setattr(masks_module, "prepare", lambda *_, **__: open_prepared(tmp_path / "halves"))
    found = masks(settings, 0, tmp_path)
    assert found["correct"] > 0.9
    assert found["correct_train"] > 0.9


def test_the_log_determinant_of_the_standard_flow_is_that_of_its_jacobian():
    generator = torch.Generator().manual_seed(0)
    flow = StandardRealNVP((1, 4, 4), 4, 1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    flow.double().eval()
    x = 256 * torch.rand(1, 1, 4, 4, generator=generator, dtype=torch.float64)
    _, log_det = flow(x)
    jacobian = torch.autograd.functional.jacobian(lambda one: flow(one[None])[0][0], x[0]).reshape(16, 16)
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], log_det[0], rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="by 4"):
        StandardRealNVP((1, 6, 6))


def test_correct_counts_images_under_their_own_flow():
    class Constant(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def log_prob(self, x):
            return torch.full((len(x),), self.value)

    images = [torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(1, 1, 2, 2, dtype=torch.uint8)]
    assert correct([Constant(1.0), Constant(0.0)], images, {"background": False}, 0) == 0.75
    assert correct([Constant(float("nan")), Constant(0.0)], images, {"background": False}, 0) == 0.25
