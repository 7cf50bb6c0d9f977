"""Advice on a method: what was measured of a set, and what follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.data import app
from shoal.engine.settings.run_settings import load_settings
from shoal.lifecycle.advice import Measured, about_classes, about_sites, about_training, advise, described

POINTS = ["data.name=gaussian", "data.options={samples: 80, clusters: 3, dimension: 8, test: 20}"]
PHOTOS = Measured("photos", "image", (3, 40, 40), 660, 6, 90, 110, 130, 4, 12.0, 0.6, False)


def test_a_set_is_measured(home: Path) -> None:
    advice = advise(load_settings(None, [*POINTS, "model.clusters=auto", "partition.clients=4"]))
    assert advice.method == "fedkmeans"
    assert (advice.measured.clients, advice.measured.classes) == (4, 3)
    assert advice.measured.skew is not None
    assert advice.measured.skew < 0.2, "iid"
    assert "federated K-means on columns as they are" in advice.sentences[0]


@pytest.mark.long
def test_data_show_ends_with_the_command(home: Path) -> None:
    assert CliRunner().invoke(app, ["prepare", "digits"]).exit_code == 0
    done = CliRunner().invoke(app, ["show", "digits"])
    assert done.exit_code == 0, done.output
    assert "skew of clients" in done.output
    assert "run: shoal run --set data.name=digits" in done.output


def test_what_is_measured_reads_well() -> None:
    assert "at 6 clients, 90 to 130 each (median 110)" in described(PHOTOS)[0]
    assert "at 6 clients, 90 each" in described(replace(PHOTOS, smallest=90, median=90, largest=90))[0]


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        (about_training(PHOTOS), "the median client holds 110 images, and 5,000 are wanted"),
        (about_classes(PHOTOS), "12 times the smallest: with fedsimclr_kmeans set method.evenness=0"),
        (about_sites(PHOTOS), "skew 0.60 of 1"),
    ],
)
def test_sentences_name_the_figures(sentences: tuple[str, ...], words: str) -> None:
    assert words in sentences[0]
