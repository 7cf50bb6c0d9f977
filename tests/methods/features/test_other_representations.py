"""What is made of samples before they are clustered: light, counts and spectra, each of one sample alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from table_federation import Rows

from shoal.methods.contract.context import MethodError
from shoal.methods.features.representation import even_light, log_spectrum, represented


def test_an_image_under_other_light_is_the_same() -> None:
    image = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(0)).mean(1, keepdim=True)
    tinted = image * torch.tensor([0.5, 0.7, 0.3]).view(1, 3, 1, 1) + 0.1
    plain = even_light(image.expand(-1, 3, -1, -1))
    torch.testing.assert_close(even_light(tinted), plain, rtol=0, atol=1e-4)
    assert plain.shape == (4, 3, 12, 12)
    assert torch.equal(plain[:, 0], plain[:, 2]), "colour says nothing"
    assert 0 <= float(plain.min()) < 0.2 < 0.8 < float(plain.max()) <= 1
    flat = even_light(torch.full((1, 1, 4, 4), 0.3))
    assert torch.allclose(flat, torch.full((1, 1, 4, 4), 0.5))


def test_a_spectrum_knows_neither_phase_nor_level_but_frequency() -> None:
    time = torch.arange(32)
    waves = torch.stack([torch.sin(2 * torch.pi * k * time / 32) for k in (2, 5)])[:, None]
    spectra = log_spectrum(waves)
    assert spectra.shape == (2, 1, 16)
    assert spectra.argmax(2).flatten().tolist() == [1, 4]
    torch.testing.assert_close(log_spectrum(waves.roll(7, 2) + 3), spectra, rtol=1e-3, atol=1e-2)


def test_counts_are_logarithms_and_others_stay() -> None:
    x = torch.tensor([[0.0, 1.0, 7.0]])
    assert represented(x, "counts")[0].tolist() == pytest.approx([0, np.log(2), np.log(8)])
    assert represented(x, "as-is") is x


def topics(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of counts of 60 words, of very different lengths, about three topics."""
    rng = np.random.default_rng(seed)
    y = np.arange(240) % 3
    share = 0.5 * rng.dirichlet(np.full(60, 0.3)) + 0.5 * rng.dirichlet(np.full(60, 0.1), 3)
    length = np.round(20 * np.exp(rng.normal(0, 1, 240)) + 5).astype(int)
    return np.stack([rng.multinomial(length[k], share[y[k]]) for k in range(240)]), y


def test_directions_of_counts_find_what_counts_hide(tmp_path: Path) -> None:
    x, y = topics(0)
    rows = Rows(tmp_path, x, y, np.arange(240) % 5)
    plain = rows.method("fedkmeans", standardise=False)
    assert rows.accuracy(plain, rows.run(plain)) < 0.7
    method = rows.method("fedkmeans", standardise=True, representation="counts", space="directions")
    server = rows.run(method)
    assert rows.accuracy(method, server) > 0.95
    found = method.predictor(server)(torch.from_numpy(x.astype(np.float32))).cluster
    assert torch.equal(found, method.assignment(server, rows, rows.evaluation()).cluster), "new samples as well"


def test_a_representation_of_other_data_is_refused(tmp_path: Path) -> None:
    rows = Rows(tmp_path, topics(0)[0], topics(0)[1], np.arange(240) % 5)
    with pytest.raises(MethodError, match=r"method\.representation=light is made of image data, and these are vector"):
        rows.method("fedkmeans", representation="light")
