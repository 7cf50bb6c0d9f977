"""What a server reads: the tables follow from the kept figures, and noise hides rows only if there is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.starting import new_run
from shoal_research.server_reads import measure, networks, noise
from shoal_research.server_reads.below_noise import played_below_noise
from shoal_research.server_reads.from_features import FeatureReading
from shoal_research.server_reads.from_weights import Sender

POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}


@pytest.mark.parametrize("made", [measure, noise, networks])
def test_a_table_is_that_of_its_figures(made: Any) -> None:
    page = measure.PAGE.read_text()
    assert made.page_with_table(page) == page, f"run python -m {made.__name__}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "unit", "scale", "summed"),
    [
        ({"name": "fedkmeans"}, "row", 0.001, False),
        ({"name": "fedkmeans"}, "row", 0.001, True),
        ({"name": "fedgmm"}, "row", 0.001, False),
        ({"name": "fedkmeans", "landmarks": 20}, "row", 0.001, False),
        ({"name": "fedkmeans"}, "row", 0.3, False),
        ({"name": "fedkmeans"}, "client", 0.05, True),
    ],
)
def test_rows_are_read_below_little_noise_alone(
    home: Path, small: Callable[..., Any], settings: dict[str, Any], unit: str, scale: float, summed: bool
) -> None:
    privacy = {"clip": 1.0, "noise": scale, "unit": unit}
    run = new_run(small(method=settings, data=POINTS, rounds=20, privacy=privacy))
    view = played_below_noise(OpenedRun(run), summed=summed)[0]
    assert (view.near > view.guessed + 0.1) == (scale == 0.001)


@pytest.mark.long
def test_weights_tell_the_rows_of_their_client_alone(home: Path) -> None:
    opened = networks.opened_run({"method": {"name": "fedsimclr"}}, 2, 0)
    assert networks.weights_view(opened)[2:] == (1, 0, 0, 1), "near, guessed, wrong, columns"


@pytest.mark.long
@pytest.mark.parametrize("case", networks.IMAGE_CASES)
def test_views_of_the_images_have_their_features_in_the_span(
    home: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    opened = networks.opened_run(networks.IMAGE_CASES[case], 2, 0, "digits")
    exchange = networks.first_exchanges(opened)[0]
    images = exchange.client.train.raw()
    reading = FeatureReading(Sender.of(opened.method, exchange), tuple(images.shape))
    true = images.double().flatten() / 255
    assert reading.residuals(true).norm() < 1e-3
    assert reading.residuals(true.roll(1)).norm() > 0.1
    monkeypatch.setattr(FeatureReading, "read", lambda *_: images.flatten(1).numpy())
    assert networks.weights_view(opened)[1:] == (1 / 6, 1 / 6, 0, 4, 0.8), "taken for those of three clients"
