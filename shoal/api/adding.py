"""The user's own data, from Python."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from shoal.data.sets.prepared import Manifest
from shoal.engine.settings.private_home import private_files
from shoal.lifecycle.adding import add_own
from shoal.lifecycle.embedding import embed as embed_images


@private_files()
def add_data(path: str | Path, name: str, **options: Any) -> Manifest:
    """Add images in one sub-folder per client, a table (Parquet, CSV) with a client column, or vectors in arrays.

    Args:
        path: the folder, the table, or the file of arrays.
        name: what the set is called: small letters, digits, - and _.
        options: those of `shoal.data.intake.options.AddOptions`, and of `shoal data add`.

    Returns:
        The manifest of the set: `.name`, which `data` of a run's settings takes, `.kind`, `.shape`, `.train`, `.test`,
        `.extra["clients"]`. What was adapted or left out stands in data/store/own/NAME.intake.json.

    Raises:
        ShoalError: names every file or column that is wrong.
        TypeError: there is no such option.
    """
    added = add_own(Path(path), name, **options)
    if added.warning:
        warnings.warn(added.warning, stacklevel=2)
    return added.prepared.manifest


@private_files()
def embed(name: str, encoder: str, target: str | None = None, *, force: bool = False) -> Manifest:
    """Make vectors of the images of a set with a pretrained encoder: a set of their own, with the same samples.

    Args:
        name: a set of images, built in or your own.
        encoder: efficientnet-lite0, timm:NAME, torchvision:NAME, either with @WEIGHTS, or file:TORCHSCRIPT. Its weights
            must be here: nothing is downloaded.
        target: the name of the new set; none: NAME-ENCODER.
        force: replace a set of that name.

    Returns:
        The manifest of the new set.

    Raises:
        ShoalError: the set holds no images, the encoder is not here, or the name is taken.
    """
    done = embed_images(name, encoder, target, force=force)
    if done.warning:
        warnings.warn(done.warning, stacklevel=2)
    return done.prepared.manifest
