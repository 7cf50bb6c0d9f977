"""The user's own data, from Python."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings.private_home import private_files
from shoal.lifecycle.adding import add_own
from shoal.lifecycle.embedding import check_encoder
from shoal.lifecycle.embedding import embed as embed_images


@dataclass(frozen=True)
class AddedData:
    """A data set of the user's own: its name is what `data` of a run's settings takes.

    Attributes:
        name: of the set.
        kind: image, vector or series.
        shape: of a sample.
        train, test: how many samples.
        clients: their names.
        skipped: files that were left out, with reasons.
        folder: where it lies.
        intake: what was taken, adapted and left out, with all names.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    train: int
    test: int
    clients: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    folder: Path
    intake: Intake


@private_files()
def add_data(path: str | Path, name: str, *, encoder: str | None = None, **options: Any) -> AddedData:
    """Add images in one sub-folder per client, a table (Parquet, CSV) with a client column, or vectors in arrays.

    Args:
        path: the folder, the table, or the file of arrays.
        name: what the set is called: small letters, digits, - and _.
        encoder: of images: a pretrained encoder that then makes vectors of them; what is returned is their set.
        options: those of `shoal.data.intake.options.AddOptions`, and of `shoal data add`.

    Raises:
        ShoalError: names every file or column that is wrong.
        TypeError: there is no such option.
    """
    if encoder is not None:
        check_encoder(encoder, Path(path))
    added = add_own(Path(path), name, **options)
    if added.warning:
        warnings.warn(added.warning, stacklevel=2)
    made = _added_data(added.prepared, added.intake)
    if encoder is None:
        return made
    return replace(embed(name, encoder), skipped=made.skipped, intake=made.intake)


@private_files()
def embed(name: str, encoder: str, target: str | None = None, *, force: bool = False) -> AddedData:
    """Make vectors of the images of a set with a pretrained encoder: a set of their own, with the same samples.

    Args:
        name: a set of images, built in or your own.
        encoder: efficientnet-lite0, timm:NAME, torchvision:NAME, either with @WEIGHTS, or file:TORCHSCRIPT. Its weights
            must be here: nothing is downloaded.
        target: the name of the new set; none: NAME-ENCODER.
        force: replace a set of that name.

    Raises:
        ShoalError: the set holds no images, the encoder is not here, or the name is taken.
    """
    done = embed_images(name, encoder, target, force=force)
    if done.warning:
        warnings.warn(done.warning, stacklevel=2)
    return _added_data(done.prepared, Intake())


def _added_data(prepared: Prepared, intake: Intake) -> AddedData:
    manifest = prepared.manifest
    return AddedData(
        name=manifest.name,
        kind=manifest.kind,
        shape=manifest.shape,
        train=manifest.train,
        test=manifest.test,
        clients=tuple(map(str, manifest.extra.get("clients", ()))),
        skipped=tuple((str(file), str(why)) for file, why in manifest.extra.get("skipped", ())),
        folder=prepared.folder,
        intake=intake,
    )
