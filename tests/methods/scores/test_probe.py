"""The linear probe: the optimum of a convex problem, and what it is for."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from shoal.data.sets.readers import read_idx, unpack
from shoal.methods.scores import probe
from shoal.methods.scores.probe import linear_probe
from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def digits():
    """(images (n, 1, 8, 8), labels), training then test part."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(y)
    order = torch.randperm(len(x), generator=generator())
    return (x[order[:1200]], y[order[:1200]]), (x[order[1200:]], y[order[1200:]])


def fashion(mirror):
    """The first 2,000 test images of Fashion-MNIST, and 2,000 others."""
    folder = mirror / "FashionMNIST" / "raw"
    names = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
    x, y = (torch.from_numpy(np.array(read_idx(unpack((folder / n).read_bytes(), n))[:4000])) for n in names)
    x = x.float().view(-1, 1, 28, 28) / 255
    return (x[:2000], y[:2000].long()), (x[2000:], y[2000:].long())


def raw_pixels(train, test):
    pca = PCA(20, random_state=0).fit(train.flatten(1).numpy())
    return [torch.from_numpy(pca.transform(part.flatten(1).numpy())) for part in (train, test)]


def network(shape, steps, train=None, labels=None):
    """A small network as it begins, or after a few steps on the labels."""
    encoder = seeded_build(lambda: build_encoder("tiny-conv", shape), 0)
    if steps:
        head = seeded_build(lambda: torch.nn.Linear(encoder.features, 10), 1)
        optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-3)
        for rows in torch.randperm(len(train), generator=generator())[: 64 * steps].split(64):
            optimiser.zero_grad()
            F.cross_entropy(head(encoder(train[rows])), labels[rows]).backward()
            optimiser.step()
    else:
        encoder(normal(64, *shape))
    return encoder.eval()


@pytest.fixture(params=["digits", pytest.param("fashion", marks=pytest.mark.slow)])
def images(request):
    return digits() if request.param == "digits" else fashion(request.getfixturevalue("real_mirror"))


@pytest.mark.parametrize("features", ["pixels", "untrained", "trained"])
def test_it_is_the_optimum_on_standardised_features(images, features):
    (train, y), (test, test_y) = images
    if features == "pixels":
        h, test_h = raw_pixels(train, test)
    else:
        encoder = network(train.shape[1:], 10 if features == "trained" else 0, train, y)
        with torch.no_grad():
            h, test_h = encoder(train), encoder(test)
    found = linear_probe(h, y, test_h, test_y, generator())
    mean, scale = h.double().mean(0), h.double().std(0, correction=0)
    scale[scale < 1e-9] = 1
    x, test_x = ((part.double() - mean) / scale for part in (h, test_h))
    other = LogisticRegression(C=found.strength, tol=1e-8, max_iter=20_000).fit(x.numpy(), y.numpy())
    assert found.accuracy == pytest.approx(other.score(test_x.numpy(), test_y.numpy()), abs=0.002)
    assert 0.3 < found.accuracy < 1


def test_what_has_not_converged_is_told(monkeypatch):
    monkeypatch.setattr(probe, "MAX_ITERATIONS", 1)
    y = torch.arange(90) % 3
    h = normal(90, 8) + F.one_hot(y, 8)
    with pytest.warns(UserWarning, match="probe has not converged after 1 iterations"):
        linear_probe(h, y, h, y, generator())


def test_a_converged_probe_says_nothing():
    """Also where classes are separable, so that only the penalty keeps the weights finite."""
    y = torch.arange(120) % 3
    h = normal(120, 40) + 2 * F.one_hot(y, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert linear_probe(h, y, h, y, generator()).accuracy == 1


def test_classes_that_are_seldom_are_no_obstacle():
    """A class of one sample lies in the part that chooses the penalty, or in the held-out fifth, by the draw."""
    y = torch.zeros(60, dtype=torch.int64)
    y[0] = 1
    y[30:] = 2
    h = normal(60, 4) + 3 * F.one_hot(y, 4)
    for seed in range(12):
        assert linear_probe(h, y, h, y, generator(seed)).accuracy >= 0.9


def test_one_class_is_predicted_everywhere():
    y = torch.full((20,), 7)
    assert linear_probe(normal(20, 3), y, normal(5, 3), torch.tensor([7, 7, 7, 7, 1]), generator()).accuracy == 0.8


def two_models(n=2000, seed=0):
    """Features of two models, and labels of ten classes: (fine, coarse, y).

    The first model tells all classes apart, in directions of a thousandth of its variance; the second tells them less
    well, in its largest directions.
    """
    y = torch.arange(n) % 10
    signal = F.one_hot(y, 10).float() + 0.15 * normal(n, 10, seed=seed + 1)
    fine = torch.cat((normal(n, 22, seed=seed + 2), 0.03 * signal), 1)
    coarse = torch.cat((3 * (F.one_hot(y, 10) + 0.45 * normal(n, 10, seed=seed + 3)), normal(n, 22, seed=seed + 4)), 1)
    turn = torch.linalg.qr(normal(32, 32, seed=99))[0]
    return fine @ turn, coarse @ turn, y


def test_what_lies_in_directions_of_low_variance_counts():
    fine, coarse, y = two_models()
    test_fine, test_coarse, test_y = two_models(seed=50)
    converged = [
        linear_probe(h, y, test, test_y, generator()).accuracy for h, test in ((fine, test_fine), (coarse, test_coarse))
    ]
    assert converged[0] > converged[1] + 0.02, converged
    assert converged[0] > 0.95


def test_units_and_offsets_of_features_do_not_matter():
    y = torch.arange(300) % 3
    h = normal(300, 12) + F.one_hot(y, 12)
    reference = linear_probe(h[:200], y[:200], h[200:], y[200:], generator())
    moved = torch.logspace(-3, 3, 12) * h + torch.linspace(-50, 50, 12)
    moved = torch.cat((moved, torch.full((300, 2), 0.1)), 1)  # two that never change
    other = linear_probe(moved[:200], y[:200], moved[200:], y[200:], generator())
    assert other.strength == reference.strength
    assert other.accuracy == pytest.approx(reference.accuracy, abs=0.011)


def test_the_penalty_is_chosen_on_what_is_held_out():
    """Strong where there are more features than samples, nearly all of them noise; weak where all say something."""
    y = torch.arange(1500) % 3
    clear = 1.2 * F.one_hot(y, 6) + 0.5 * normal(1500, 6)
    noisy = torch.cat((0.7 * F.one_hot(y[:150], 3) + 0.6 * normal(150, 3), normal(150, 400, seed=1)), 1)
    weak = linear_probe(clear, y, clear, y, generator())
    strong = linear_probe(noisy, y[:150], noisy, y[:150], generator())
    assert strong.strength <= 3e-2 < 0.1 <= weak.strength


def test_labels_are_any_integers_and_unseen_ones_count_as_wrong():
    y = torch.tensor([11, -2, 5])[torch.arange(90) % 3]
    h = 4 * F.one_hot(torch.arange(90) % 3, 8) + 0.3 * normal(90, 8)
    assert linear_probe(h, y, h, y, generator()).accuracy == 1
    unseen = torch.where(y == 5, 99, y)
    assert linear_probe(h, y, h, unseen, generator()).accuracy == pytest.approx(2 / 3)


def test_noise_is_not_found():
    y = torch.arange(400) % 4
    h, test_h = normal(400, 16), normal(400, 16, seed=1)
    assert 0.15 < linear_probe(h, y, test_h, y, generator()).accuracy < 0.35


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_a_handful_of_samples_is_enough(n):
    y = torch.arange(n) % 2
    h = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[y]
    assert linear_probe(h, y, h, y, generator()).accuracy == 1


def test_the_probe_depends_on_its_generator_alone():
    y = torch.arange(90) % 3
    h = normal(90, 8) + F.one_hot(y, 8)
    before = torch.get_rng_state()
    first, second = (linear_probe(h, y, h, y, generator(3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == second


def test_empty_sides_and_features_that_are_not_finite_are_refused():
    h, y = normal(6, 4), torch.arange(6)
    for train, test in ((h[:0], h), (h, h[:0])):
        with pytest.raises(ValueError, match="at least one"):
            linear_probe(train, y[: len(train)], test, y[: len(test)], generator())
    with pytest.raises(ValueError, match="NaN or infinite"):
        linear_probe(h / 0, y, h, y, generator())
