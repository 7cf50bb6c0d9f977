"""Statistics of a mixture add up over clients, and a step of EM is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from shoal.methods.features.mixture import Mixture, Shape, expected_sums, maximised

SKLEARNS = {"full": "full", "tied": "tied"}


def rows() -> torch.Tensor:
    rng = np.random.default_rng(1)
    return torch.from_numpy(np.concatenate([rng.normal(0, 1, (80, 3)), rng.normal(2, [0.5, 1, 2], (120, 3))]))


def start(shape: Shape) -> Mixture:
    covariances = {"full": torch.eye(3).expand(2, 3, 3), "tied": torch.eye(3)}[shape]
    means = torch.tensor([[0.0, 0, 0], [1.0, 1, 1]]).double()
    return Mixture(torch.tensor([0.5, 0.5]).double(), means, covariances.double(), shape)


@pytest.mark.parametrize("shape", SKLEARNS)
def test_sums_of_clients_are_those_of_all_rows(shape: Shape) -> None:
    z, mixture = rows(), start(shape)
    whole = expected_sums(z, mixture, mixture.means, shape, min_points=0)
    parts = [expected_sums(part, mixture, mixture.means, shape, min_points=0) for part in z.split([30, 100, 70])]
    for name, tensor in whole.items():
        assert torch.allclose(tensor, torch.stack([part[name] for part in parts]).sum(0)), name


@pytest.mark.parametrize("shape", SKLEARNS)
def test_a_step_is_scikit_learns(shape: Shape) -> None:
    z, before = rows(), start(shape)
    theirs = GaussianMixture(
        2,
        covariance_type=SKLEARNS[shape],
        weights_init=before.weights,
        means_init=before.means,
        precisions_init=torch.linalg.inv(before.covariances),
        max_iter=1,
    )
    with pytest.warns(UserWarning, match="did not converge"):
        theirs.fit(z.numpy())
    after = maximised(expected_sums(z, before, before.means, shape, min_points=0), before.means, shape)
    assert after.weights.numpy() == pytest.approx(theirs.weights_)
    assert after.means.numpy() == pytest.approx(theirs.means_)
    assert after.covariances.numpy() == pytest.approx(theirs.covariances_, rel=1e-5)
    share, likelihood = after.responsibilities(z)
    assert share.numpy() == pytest.approx(theirs.predict_proba(z.numpy()), abs=1e-5)
    assert float(likelihood.mean()) == pytest.approx(theirs.score(z.numpy()), abs=1e-5)


@pytest.mark.parametrize("shape", SKLEARNS)
def test_a_component_of_few_rows_is_left_out_of_all_sums(shape: Shape) -> None:
    z = rows()
    far = torch.full((1, 3), 1e3).double()
    eyes = {"full": torch.eye(3).expand(3, 3, 3), "tied": torch.eye(3)}[shape].double()
    before = Mixture(torch.full((3,), 1 / 3).double(), torch.cat((start(shape).means, far)), eyes, shape)
    sums, alone = (expected_sums(x, before, before.means, shape, min_points=2) for x in (torch.cat((z, far)), z))
    for name, values in sums.items():
        torch.testing.assert_close(values, alone[name])


def test_a_component_without_rows_keeps_its_mean() -> None:
    z = rows()
    centres = torch.tensor([[0.0, 0, 0], [2.0, 2, 2], [100.0, 0, 0]]).double()
    found = maximised(expected_sums(z, None, centres, "full", min_points=2), centres, "full")
    assert found.means[2].tolist() == [100.0, 0.0, 0.0]
    assert bool(torch.isfinite(found.log_density(z)).all())


def test_sums_that_belong_to_no_rows_give_a_covariance_all_the_same() -> None:
    """A client may send anything within the form of its message."""
    z, before = rows(), start("full")
    sums = expected_sums(z, before, before.means, "full", min_points=0)
    sums["products"] = -sums["products"]
    found = maximised(sums, before.means, "full")
    assert float(torch.linalg.eigvalsh(found.covariances).min()) > 0
