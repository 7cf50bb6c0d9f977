"""`shoal advise`: what was measured, and advice with its rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.advise import app, described
from shoal.studies import advice as advising
from shoal.studies.advice import Measured, about_classes, about_sites, about_training, in_words

POINTS = ["gaussian", "--set", "data.options={samples: 80, clusters: 3, dimension: 8, test: 20}"]
PHOTOS = Measured("photos", "image", (3, 40, 40), 660, 6, 90, 110, 130, 4, 12.0, 0.6, False)


def test_a_set_is_measured_and_every_sentence_says_what_it_rests_on(home: Path) -> None:
    done = CliRunner().invoke(app, [*POINTS, "--json", "--set", "partition.clients=4"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["method"] == "fedkmeans"
    assert (found["measured"]["clients"], found["measured"]["classes"]) == (4, 3)
    assert found["measured"]["skew"] < 0.2, "iid"
    first = found["sentences"][0]
    assert "federated K-means on columns as they are" in first["text"]
    assert re.search(r": fedkmeans has ACC 0\.\d+, and K-means on [a-z ]+ 0\.\d+", first["row"])
    if not advising.unseen_rows():
        assert "no study of unseen sets is kept here yet" in first["row"]


def test_it_reads_as_lines_and_ends_with_the_command(home: Path) -> None:
    done = CliRunner().invoke(app, POINTS)
    assert done.exit_code == 0, done.output
    assert "skew of clients" in done.output
    assert "run: shoal run --set data.name=gaussian" in done.output


def test_what_is_measured_reads_well() -> None:
    assert "at 6 clients, 90 to 130 each (median 110)" in described(PHOTOS)[0]
    assert "at 6 clients, 90 each" in described(replace(PHOTOS, smallest=90, median=90, largest=90))[0]
    assert in_words(["wine", "iris, uneven", "iris"]) == "wine, iris (uneven), iris"


def test_a_named_method_leaves_nothing_to_advise(home: Path) -> None:
    done = CliRunner().invoke(app, [*POINTS, "--set", "method.name=fedcc"])
    assert done.exit_code == 1
    assert "give no --set method.name" in str(done.exception)


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        (about_training(PHOTOS), "the median client holds 110 images, and 5,000 are wanted"),
        (about_classes(PHOTOS), "12 times the smallest: leave method.evenness at 0"),
        (about_sites(PHOTOS), "skew 0.60 of 1"),
    ],
)
def test_sentences_name_the_figures(sentences: tuple[advising.Sentence, ...], words: str) -> None:
    assert words in sentences[0].text


def test_training_is_backed_by_a_kept_study() -> None:
    found = about_training(PHOTOS)[0].row
    assert found.startswith("study uneven-clients, ACC on digits, Dirichlet 0.1: K-means on pixels, pooled 0.789; ")
    assert about_sites(PHOTOS)[0].row.startswith("study uneven-clients, ACC on MNIST, Dirichlet 0.1: ")
