"""Vectors that an encoder made of images: the same samples in the same order, with a way back to the images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import shoal
from shoal.cli.data import app as data_app
from shoal.core.errors import DataError, ShoalError
from shoal.data.sets.prepare import own_sets, prepare
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.sample_files import sample_files
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import SetLedger
from shoal.engine.settings import places
from shoal.engine.settings.sections import DataSection
from shoal.engine.store.codec import load_server
from shoal.engine.store.embedded import images_behind, is_stale, why_no_images
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.embedding import embed
from shoal.lifecycle.starting import new_run
from shoal.models.encoder_sources import EncoderError
from shoal.models.frozen import encoder_version, frozen_encoder
from shoal.review.served.explain import explain
from shoal.review.served.predict import predict
from tests.added_sets import add_set
from tests.planted_images import kind_of, write_clients, write_new
from tests.runs import go_on, stopped
from tests.scripted_encoder import Patches, write_scripted

ENCODER = "file:parts.pt"
Make = Callable[..., Any]


@pytest.fixture
def images(home: Path) -> PreparedSet:
    """Own images of three clients and kinds, with labels and a test part; and an encoder."""
    write_scripted(home / "encoders" / "parts.pt", kind=Patches)
    write_clients(home / "pictures")
    files = sorted(path.relative_to(home / "pictures").as_posix() for path in (home / "pictures").rglob("*.png"))
    rows = [f"{file},{kind_of(file)}" for file in files]
    (home / "labels.csv").write_text("\n".join(["file,label", *rows]))
    return add_set(home / "pictures", "mine", places.store(), labels=home / "labels.csv", test=0.2)


def encoded(images: np.ndarray) -> np.ndarray:
    result: np.ndarray = frozen_encoder(ENCODER)(torch.from_numpy(np.array(images)).float() / 255).numpy()
    return result


def test_the_vectors_are_those_of_the_same_samples(images: PreparedSet) -> None:
    made = embed("mine", ENCODER).prepared
    assert made.manifest.name == "mine-file-parts"
    assert made.test_x is not None
    assert images.test_x is not None
    np.testing.assert_allclose(made.train_x, encoded(images.train_x), rtol=1e-5)
    np.testing.assert_allclose(made.test_x, encoded(images.test_x), rtol=1e-5)
    np.testing.assert_array_equal(made.train_y, images.train_y)
    np.testing.assert_array_equal(made.test_y, images.test_y)
    np.testing.assert_array_equal(made.column("client"), images.column("client"))
    assert made.manifest.class_names == images.manifest.class_names
    assert made.manifest.extra["clients"] == images.manifest.extra["clients"]
    files = sample_files(images)
    assert files is not None
    assert files.equals(sample_files(made))


def test_labels_keep_their_numbers_where_these_are_not_in_order(home: Path, images: PreparedSet) -> None:
    """Appended kinds have later numbers, whatever their names are."""
    write_clients(home / "more", ("south",), each=2)
    rows = [f"{path.relative_to(home / 'more').as_posix()},aa" for path in (home / "more").rglob("*.png")]
    (home / "labels.csv").write_text("\n".join(["file,label", *rows]))
    grown = add_set(home / "more", "mine", places.store(), labels=home / "labels.csv", append=True)
    made = embed("mine", ENCODER, "made").prepared
    assert made.manifest.class_names == grown.manifest.class_names == ("dark", "left", "right", "aa")
    np.testing.assert_array_equal(made.train_y, grown.train_y)


@pytest.mark.long
def test_a_built_in_set_is_dealt_as_before(home: Path) -> None:
    write_scripted(home / "encoders" / "parts.pt", kind=Patches)
    digits = prepare("digits", places.store())
    made = embed("digits", ENCODER, "patches").prepared
    assert made.columns() == []
    assert (made.manifest.train, made.manifest.test, made.manifest.classes) == (1437, 360, 10)
    np.testing.assert_array_equal(made.train_y, digits.train_y)
    np.testing.assert_allclose(made.train_x[:50], encoded(digits.train_x[:50]), rtol=1e-5)


def test_nothing_is_done_twice_and_changed_images_are_told(home: Path, images: PreparedSet) -> None:
    first = embed("mine", ENCODER, "made")
    assert "nothing to embed" in embed("mine", ENCODER, "made").message
    write_clients(home / "pictures", ("south",))
    add_set(home / "pictures", "mine", places.store(), labels=labels_of_new(home), append=True)
    assert is_stale(first.prepared)
    assert images_behind(first.prepared) is not None, "the images that were embedded are still there"
    again = embed("mine", ENCODER, "made")
    about = first.prepared.manifest
    assert again.prepared.manifest.extra["versions"] == [
        {"digest": about.digest, "train": about.train, "test": about.test}
    ]
    assert "'mine' had changed since it was embedded" in again.message
    assert again.prepared.manifest.extra["clients"][-1] == "south"
    assert not is_stale(again.prepared)


def labels_of_new(home: Path) -> Path:
    files = [path.relative_to(home / "pictures").as_posix() for path in (home / "pictures" / "south").rglob("*.png")]
    (home / "new.csv").write_text("\n".join(["file,label", *(f"{file},{kind_of(file)}" for file in files)]))
    return home / "new.csv"


def test_other_images_are_not_shown_in_place_of_those_that_were_embedded(home: Path, images: PreparedSet) -> None:
    made = embed("mine", ENCODER, "made").prepared
    write_clients(home / "pictures", each=9)
    add_set(home / "pictures", "mine", places.store(), force=True)
    assert images_behind(made) is None
    assert "has changed since it was embedded: run `shoal data embed mine" in str(why_no_images(made))


def test_wrong_requests_are_refused(home: Path, images: PreparedSet) -> None:
    embed("mine", ENCODER, "made")
    with pytest.raises(DataError, match="holds vectors, and an encoder takes images"):
        embed("made", ENCODER)
    with pytest.raises(DataError, match="there is a data set 'mine' already"):
        embed("mine", ENCODER, "mine")
    with pytest.raises(DataError, match=r"append to these, then run `shoal data embed mine"):
        add_set(home / "pictures", "made", places.store(), append=True)
    with pytest.raises(EncoderError, match=r"is not installed: put other\.pt into the folder encoders"):
        embed("mine", "file:other.pt")


@pytest.fixture
def run(images: PreparedSet, small: Make) -> RunFolder:
    """A finished run on the vectors."""
    embed("mine", ENCODER, "made")
    settings = small(
        data={"name": "made", "limit": None},
        method={"name": "fedkmeans"},
        partition={"kind": "auto", "clients": None},
        model={"clusters": 3, "encoder": None},
        rounds=12,
    )
    run = new_run(settings)
    drive(run)
    return run


def test_vectors_have_the_privacy_ledger_of_their_images(home: Path, images: PreparedSet) -> None:
    embed("mine", ENCODER, "made")
    made = SetLedger.from_settings(DataSection(name="made"))
    assert made.name == "mine"
    assert made.path.name == "mine.json"
    for name in ("mine", "made"):
        with SetLedger.from_settings(DataSection(name=name)).changing() as runs:
            runs[name] = Ledger(2.0)
    assert set(SetLedger.from_settings(DataSection(name="mine")).runs()) == {"mine", "made"}


@pytest.mark.long
def test_a_run_on_vectors_shows_and_takes_images(home: Path, run: RunFolder) -> None:
    assert len(list((run.figures / "clusters").glob("*.png"))) == 3
    assert explain(run, 0).draw(home / "sheet.png").is_file()
    page = (run.path / "report.html").read_text()
    assert '<td>images</td><td class="words">mine<' in page
    assert f'<td>encoder</td><td class="words">{ENCODER}' in page
    write_new(home / "new")
    found = predict(run, home / "new", on_odd="resize").table
    kinds = found["file"].map(kind_of)
    assert found.groupby(kinds)["cluster"].nunique().eq(1).all()
    assert found["cluster"].nunique() == 3
    assert "embedding_0" not in found
    write_scripted(home / "encoders" / "parts.pt", factor=2.0, kind=Patches)
    with pytest.raises(ShoalError, match="are not those that were used before"):
        predict(run, home / "new", on_odd="resize")


@pytest.mark.long
def test_vectors_of_several_layers_are_clustered_as_the_images_are(images: PreparedSet, small: Make) -> None:
    """Each group of layers counts equally, whether a run encodes images itself or gets vectors."""
    encoder = "efficientnet-lite0-layers"
    made = embed("mine", encoder, "vectors").prepared
    assert made.spec.layer_widths == (1280, 768, 3072)
    found = []
    for name, own in (("mine", encoder), ("vectors", None)):
        settings = small(
            data={"name": name, "limit": None},
            method={"name": "fedkmeans", "components": 4},
            partition={"kind": "auto", "clients": None},
            model={"clusters": 3, "encoder": own},
            rounds=7,
        )
        run = new_run(settings)
        drive(run)
        found.append(load_server(RoundPaths(run.path, 7).server).model)
    assert found[0].keys() == found[1].keys()
    assert "space.projection" in found[0]
    for key, tensor in found[0].items():
        torch.testing.assert_close(found[1][key], tensor, rtol=1e-3, atol=1e-3)


def test_a_run_with_an_encoder_goes_on_only_with_its_weights(home: Path, images: PreparedSet, small: Make) -> None:
    settings = small(
        data={"name": "mine", "limit": None},
        method={"name": "fedkmeans"},
        partition={"kind": "auto", "clients": None},
        model={"encoder": ENCODER},
        rounds=3,
    )
    run = stopped(settings, "round_finished", 1)
    lineage = run.lineage()
    assert lineage.encoder == encoder_version(ENCODER)
    write_scripted(home / "encoders" / "parts.pt", factor=2.0, kind=Patches)
    with pytest.raises(ShoalError, match="are not those that were used before"):
        go_on(run)
    write_scripted(home / "encoders" / "parts.pt", kind=Patches)
    go_on(run)
    assert run.is_finished()


def test_nothing_is_made_where_the_encoder_is_missing(home: Path, images: PreparedSet) -> None:
    with pytest.raises(EncoderError, match="is not installed"):
        shoal.embed("mine", "file:other.pt")
    shown = CliRunner().invoke(data_app, ["embed", "mine", "--encoder", ENCODER])
    assert "are vectors in 'mine-file-parts'" in shown.output
    assert [manifest.name for manifest in own_sets(places.store())] == ["mine", "mine-file-parts"]
