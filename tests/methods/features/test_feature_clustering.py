"""Federated clusterings of vectors against scikit-learn on the pooled vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.mixture import GaussianMixture
from table_federation import Rows, uneven_owners

from shoal.methods.contract.base import ClientError
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import fault
from shoal.methods.contract.message import Message
from shoal.methods.features.centre_clustering import CENTRES
from shoal.methods.features.components import BLOCK, BLOCKS
from shoal.methods.features.fedgmm import WEIGHTS
from shoal.methods.features.space import in_space
from shoal.methods.features.space_steps import ENERGIES
from shoal.methods.features.start_steps import WEIGHED_STARTS
from shoal.methods.features.vectors import SITE_MEAN
from shoal.methods.scores.clustering import accuracy
from tests.conftest import one_quick

SEEDS = range(5)


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def blobs(seed: int = 0, sites: int = 3, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three groups of points on a line in five dimensions; each site's points are shifted by its number."""
    rng = np.random.default_rng(seed)
    y = np.arange(300) % 3
    owner = np.arange(300) // 3 % sites
    x = rng.normal(size=(300, 5)) * 0.3
    x[:, 0] += 3 * y
    x[:, 1] += shift * owner
    return x.astype(np.float32), y, owner


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_k_means_finds_what_it_finds_on_pooled_digits(tmp_path: Path, seed: int) -> None:
    x, y = load_digits(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 6, seed), seed)
    method = rows.method("fedkmeans")
    server = rows.run(method)
    pooled = KMeans(10, n_init=10, random_state=seed).fit(x)
    assert rows.accuracy(method, server) >= accuracy(y, pooled.labels_) - 0.01
    centres = method.centres(server).numpy()
    inertia = np.square(x[:, None] - centres[None]).sum(2).min(1).sum()
    assert inertia <= pooled.inertia_ * 1.003


@pytest.mark.parametrize("seed", one_quick(SEEDS))
@pytest.mark.parametrize(("covariance", "sklearns"), one_quick([("full", "full"), ("tied", "tied")]))
def test_a_mixture_is_that_of_pooled_rows(tmp_path: Path, seed: int, covariance: str, sklearns: str) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 6, seed), seed)
    method = rows.method("fedgmm", covariance=covariance, standardise=True)
    server = rows.run(method)
    assert server.finished
    pooled = GaussianMixture(2, covariance_type=sklearns, random_state=seed, n_init=3).fit(standardised(x))
    assert abs(rows.accuracy(method, server) - accuracy(y, pooled.predict(standardised(x)))) <= 0.01


@pytest.mark.parametrize(
    ("name", "settings"),
    one_quick(
        [("fedkmeans", {}), ("fedkmeans", {"standardise": True}), ("fedkmeans", {"components": 2}), ("fedgmm", {})]
    ),
)
def test_columns_may_be_in_any_unit(tmp_path: Path, name: str, settings: dict[str, object]) -> None:
    """Their squares are beyond the bound of other messages."""
    x, y, owner = blobs()
    found = []
    for unit in (1, 1e8):
        rows = Rows(tmp_path / str(unit), x * unit, y, owner)
        method = rows.method(name, **settings)
        found.append(rows.accuracy(method, rows.run(method)))
    assert found[0] == found[1] > 0.5


def test_standardising_takes_the_federations_moments(tmp_path: Path) -> None:
    """Wine's columns differ by a factor of 1,000: without standardising K-means follows one of them."""
    x, y = load_wine(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 4, 1))
    k_means = rows.method("fedkmeans")
    scaled = rows.method("fedkmeans", standardise=True)
    assert rows.accuracy(k_means, rows.run(k_means)) < 0.75
    server = rows.run(scaled)
    assert rows.accuracy(scaled, server) > 0.95
    assert torch.allclose(server.model["space.mean"], torch.from_numpy(x.astype(np.float32).astype(float).mean(0)))
    assert torch.allclose(server.model["space.scale"], torch.from_numpy(1 / x.std(0)), rtol=1e-5)


def test_measurements_are_standardised_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    """As scikit-learn does on the pooled columns, also before principal components."""
    x, y = load_wine(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 4, 1))
    rows.data.spec = replace(rows.data.spec, measurements=True)
    expected = accuracy(y, KMeans(3, n_init=20, random_state=0).fit_predict(standardised(x)))
    for changes in ({}, {"components": 13}):
        method = rows.method("fedkmeans", **changes)
        assert abs(rows.accuracy(method, rows.run(method)) - expected) <= 0.01
    k_means = rows.method("fedkmeans", standardise=False)
    assert rows.accuracy(k_means, rows.run(k_means)) < 0.75


def test_a_column_of_text_counts_as_one_measurement(tmp_path: Path) -> None:
    """Three kinds in three measurements, and a colour that tells nothing: its columns of 0 and 1 would be found."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    colour = rng.permutation(y)
    measured = 4 * np.eye(3)[y] + rng.normal(size=(300, 3))
    x = np.concatenate([measured, np.eye(3)[colour]], 1)
    rows = Rows(tmp_path, x, y, np.arange(300) // 3 % 4)
    rows.data.spec = replace(rows.data.spec, measurements=True)
    alone = rows.method("fedkmeans")
    assert rows.accuracy(alone, rows.run(alone)) < 0.6
    rows.data.spec = replace(rows.data.spec, column_widths=(1, 1, 1, 3))
    method = rows.method("fedkmeans")
    server = rows.run(method)
    assert rows.accuracy(method, server) > 0.9
    z = in_space(torch.from_numpy(x), server.model, directions=False)
    assert z.var(0, correction=0).tolist() == pytest.approx([1, 1, 1, 1 / 3, 1 / 3, 1 / 3], rel=1e-4)


@pytest.mark.parametrize("components", one_quick([0, 5]))
def test_each_group_of_layers_counts_equally(tmp_path: Path, components: int) -> None:
    """The groups that are sought lie in two small columns; three large ones of other layers hold noise."""
    x, y, owner = blobs()
    x = np.concatenate([x[:, :2], 100 * np.random.default_rng(1).normal(size=(300, 3))], 1).astype(np.float32)
    rows = Rows(tmp_path, x, y, owner)
    k_means = rows.method("fedkmeans", components=components)
    assert rows.accuracy(k_means, rows.run(k_means)) < 0.6
    rows.data.spec = replace(rows.data.spec, layer_widths=(2, 3))
    method = rows.method("fedkmeans", components=components)
    server = rows.run(method)
    assert rows.accuracy(method, server) > 0.95
    z = in_space(torch.from_numpy(x), server.model, directions=False)
    assert z.var(0, correction=0).sum().item() == pytest.approx(2, rel=1e-5), "the variance of each group is 1"


def test_components_are_those_of_pooled_rows(tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 6, 0))
    method = rows.method("fedkmeans", components=8)
    server = rows.run(method, rounds=1 + BLOCKS)
    _, _, directions = np.linalg.svd(x - x.mean(0), full_matrices=False)
    cosines = np.abs((directions[:8] * server.model["space.projection"].numpy().T).sum(1))
    assert cosines == pytest.approx(np.ones(8), abs=1e-3)
    assert list(server.state) == [ENERGIES]
    assert BLOCK not in server.model


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 1),
        ({"standardise": True}, 2),
        ({"components": 8}, 1 + 4 + 1),
        ({"components": 60}, 1 + 2 + 1),
        ({"landmarks": 100}, 2 + 1),
        ({"components": 8, "landmarks": 100}, 1 + 4 + 2 + 1),
    ],
)
def test_the_round_of_the_first_clusters_is_known(tmp_path: Path, settings: dict[str, Any], first: int) -> None:
    x, y = load_digits(return_X_y=True)
    rows = Rows(tmp_path, x, y, uneven_owners(y, 6, 0))
    method = rows.method("fedkmeans", **settings)
    assert method.first_round_with_clusters == first
    assert CENTRES not in rows.run(method, rounds=first - 1).model
    assert CENTRES in rows.run(method, rounds=first).model


def test_few_columns_are_asked_for_all_at_once(tmp_path: Path) -> None:
    """Then the components are exact, after a single round."""
    x, y, owner = blobs()
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedkmeans", components=5)
    server = rows.run(method, rounds=2)
    z = in_space(torch.from_numpy(x), server.model, directions=False)
    exact = torch.linalg.svdvals(torch.from_numpy(x - x.mean(0)).double())[:5].square()
    torch.testing.assert_close(z.T @ z, exact.diag(), rtol=1e-6, atol=1e-3)


def test_a_mixture_ends_once_its_likelihood_falls(tmp_path: Path) -> None:
    """Clients that leave out what few rows tell make it go up and down for ever."""
    x, y, owner = blobs()
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedgmm")
    mixing = next(server for server in (rows.run(method, rounds) for rounds in range(8, 20)) if WEIGHTS in server.model)
    answers = [method.client_update(method.broadcast(mixing, k), rows[k]) for k in range(len(rows))]
    for before, ended in ((-1e9, False), (1e9, True)):
        server = replace(mixing, facts={**mixing.facts, "likelihood": before}, finished=False)
        assert method.aggregate(server, iter(answers)).finished == ended


def test_more_columns_than_samples_have_components(tmp_path: Path) -> None:
    """Blocks then run out of directions with any variance: those that are left are not among the components."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 300))
    rows = Rows(tmp_path, x, np.arange(12) % 2, np.arange(12) % 3)
    server = rows.run(rows.method("fedkmeans", components=40), rounds=1 + BLOCKS)
    projection = server.model["space.projection"]
    assert projection.shape == (300, 11)
    torch.testing.assert_close(projection.T @ projection, torch.eye(11, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_client_answers_a_block_with_products(tmp_path: Path) -> None:
    x, _, owner = blobs()
    rows = Rows(tmp_path, x, np.zeros(300, int), owner)
    method = rows.method("fedkmeans", components=2)
    server = rows.run(method, rounds=1)
    sent = method.client_update(method.broadcast(server, 0), rows[0]).message
    own = (x - x.astype(float).mean(0))[owner == 0]
    torch.testing.assert_close(sent.tensors["products"], torch.from_numpy(own.T @ own).float())
    form = method.declared(server, 0, len(own))
    assert fault(sent, form) is None
    spoilt = sent.tensors["products"].clone()
    spoilt[2, 2] = -1.0
    told = fault(Message({**sent.tensors, "products": spoilt}), form)
    assert told == "tensor 'products' holds a negative sum of squares"


def test_a_client_of_too_few_rows_answers_with_nothing(tmp_path: Path) -> None:
    x, y, owner = blobs()
    owner[:] = 0
    owner[0] = 1
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedkmeans", components=2)
    server = rows.run(method, rounds=1)
    sent = method.client_update(method.broadcast(server, 1), rows[1]).message.tensors
    assert not sent["products"].any()
    assert sent["samples"] == 0


def test_the_sphere_compares_directions(tmp_path: Path) -> None:
    """Rows of three directions and of lengths from 1 to 1,000: distances see lengths, the sphere does not."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (np.eye(3)[y] + rng.normal(size=(240, 3)) * 0.05) * 10 ** rng.uniform(0, 3, (240, 1))
    rows = Rows(tmp_path, x, y, np.arange(240) % 4)
    flat, round_ = rows.method("fedkmeans"), rows.method("fedkmeans", space="directions")
    assert rows.accuracy(flat, rows.run(flat)) < 0.9
    assert rows.accuracy(round_, rows.run(round_)) == 1


def test_centring_sites_takes_away_a_shift(tmp_path: Path) -> None:
    """Sites 20 apart are what K-means finds; without each site's own mean the groups are found."""
    x, y, owner = blobs(shift=20.0)
    rows = Rows(tmp_path, x, y, owner)
    k_means = rows.method("fedkmeans", sites="ignore")
    assert rows.accuracy(k_means, rows.run(k_means)) < 0.5
    rows.memory = {}
    centred = rows.method("fedkmeans", sites="centre")
    server = rows.run(centred)
    assert rows.accuracy(centred, server) == 1
    assert torch.allclose(rows.memory[1][SITE_MEAN], torch.from_numpy(x[owner == 1].astype(float).mean(0)))
    assert (centred.assignment(server, rows, rows.evaluation()).cluster.bincount() == 100).all()


def test_groups_below_min_points_send_nothing(tmp_path: Path) -> None:
    x, y, owner = blobs()
    owner[:] = 0
    owner[0] = 1  # a client with one row
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedkmeans", min_points=2)
    server = rows.run(method, rounds=1)
    update = method.client_update(method.broadcast(server, 1), rows[1])
    assert not update.message.tensors["counts"].any()
    assert not update.message.tensors["sums"].any()
    assert not update.message.tensors["inertia"].any()


def test_sites_of_three_rows_send_centres_of_two_and_more(tmp_path: Path) -> None:
    x, y, _ = blobs()
    rows = Rows(tmp_path, x, y, np.random.default_rng(0).permutation(300) // 3)
    method = rows.method("fedkmeans")
    server = rows.run(method, rounds=0)
    sent = method.client_update(method.broadcast(server, 0), rows[0]).message.tensors
    assert sent["counts"].tolist() == [[3.0]]
    assert rows.accuracy(method, rows.run(method)) > 0.95


def test_one_start_of_the_weighed_ones_goes_on(tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    rows = Rows(tmp_path, x, y, np.arange(len(x)) % 3)
    method = rows.method("fedkmeans", sites="ignore")
    server = rows.run(method, rounds=1)
    assert len(server.model[CENTRES]) == WEIGHED_STARTS
    costs = [np.square(x[:, None] - start[None]).sum(2).min(1).sum() for start in server.model[CENTRES].float().numpy()]
    weighed = rows.run(method, rounds=2)
    assert torch.equal(weighed.model[CENTRES], server.model[CENTRES][[int(np.argmin(costs))]])


def test_vectors_that_are_not_finite_are_the_clients_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, owner = blobs()
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedkmeans")
    monkeypatch.setattr(method.source, "of", lambda x: x * np.inf)
    with pytest.raises(ClientError, match="client 0 holds values that are not finite"):
        rows.run(method, rounds=1)


def test_rows_that_are_all_alike_are_refused(tmp_path: Path) -> None:
    x, y, owner = blobs()
    x[:] = 1
    rows = Rows(tmp_path, x, y, owner)
    with pytest.raises(MethodError, match="every column is the same for all samples"):
        rows.run(rows.method("fedkmeans", standardise=True))


def test_full_covariances_of_many_columns_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    rows = Rows(tmp_path, rng.normal(size=(60, 600)) + 3 * y[:, None], y, np.arange(60) % 3)
    with pytest.raises(MethodError, match=r"set method\.components to 512 or fewer"):
        rows.run(rows.method("fedgmm"))
