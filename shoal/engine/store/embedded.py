"""Sets of vectors that an encoder made of a set of images, and the way back to the images.

The manifest of such a set has the entry `embedded` in its `extra`: `EmbeddedFrom`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json
from shoal.data.own_store import VERSIONS
from shoal.data.prepare import store_folder
from shoal.data.prepared import DataSpec, Manifest, Prepared, open_prepared
from shoal.data.remedy import EMBEDDED
from shoal.models.frozen import EncoderVersion

DRAWN = ("image", "series")
"""Kinds of data of which a sample can be drawn."""
PREFIX = "embedding_"
"""The columns of a table of such vectors are called embedding_0, embedding_1, and so on."""


@dataclass(frozen=True)
class EmbeddedFrom:
    """Where the vectors of a set come from.

    Attributes:
        images: the name of the set of images.
        digest: of its bytes.
        shape: of an image.
        on_odd: what is done with new images of another size: `resize` or `skip`.
        encoder: what made vectors of them.
        device: where: cpu or cuda, whose last bits differ.
        layer_widths: as of `DataSpec`.
    """

    images: str
    digest: str
    shape: tuple[int, ...]
    on_odd: str
    encoder: EncoderVersion
    device: str
    layer_widths: tuple[int, ...] = ()

    @property
    def spec(self) -> DataSpec:
        """The form of an image."""
        return DataSpec(self.images, "image", self.shape, None, 0, 0)


def embedded_from(manifest: Manifest) -> EmbeddedFrom | None:
    """Return where the vectors of a set come from; None for a set that no encoder made.

    Raises:
        DataError: the entry in the manifest is damaged.
    """
    if EMBEDDED not in manifest.extra:
        return None
    try:
        return record_from_json(EmbeddedFrom, manifest.extra[EMBEDDED])
    except BadRecord as error:
        raise DataError(f"the manifest of {manifest.name!r} does not say what it was embedded from: {error}") from None


def images_behind(prepared: Prepared) -> Prepared | None:
    """Return the set with the images of a set's samples: itself, also of windows, or what it was embedded from.

    A set of images that has grown since still has the images that were embedded, with the same numbers.

    Returns:
        None where the set has no images, or the images are missing or have changed (`why_no_images`).
    """
    if prepared.manifest.kind in DRAWN:
        return prepared
    origin = embedded_from(prepared.manifest)
    if origin is None:
        return None
    found = _present(prepared, origin)
    if found is None or not _holds(found.manifest, origin):
        return None
    return found


def why_no_images(prepared: Prepared) -> str | None:
    """Return why the images behind an embedded set cannot be shown; None for other sets, and where they can."""
    origin = embedded_from(prepared.manifest)
    if origin is None or images_behind(prepared) is not None:
        return None
    if _present(prepared, origin) is None:
        return f"the images of {prepared.manifest.name!r} are not shown: the set {origin.images!r} is not here"
    return f"the images of {prepared.manifest.name!r} are not shown: {changed_images(prepared)}"


def changed_images(prepared: Prepared) -> str:
    """Return the sentence about the images of an embedded set that are no longer those that were embedded."""
    name = prepared.manifest.name
    origin = embedded_from(prepared.manifest)
    assert origin is not None
    return (
        f"the set {origin.images!r} has changed since it was embedded: run `shoal embed {origin.images} --encoder "
        f"{origin.encoder.name} --name {name}` again"
    )


def is_stale(prepared: Prepared) -> bool:
    """Return whether the images that a set was embedded from have changed, or grown, since."""
    origin = embedded_from(prepared.manifest)
    if origin is None:
        return False
    found = _present(prepared, origin)
    return found is not None and found.manifest.digest != origin.digest


def _present(prepared: Prepared, origin: EmbeddedFrom) -> Prepared | None:
    """Return the set of that name in the same store; None where it is missing or damaged."""
    try:
        return open_prepared(store_folder(prepared.folder.parent.parent, origin.images))
    except DataError:
        return None


def _holds(manifest: Manifest, origin: EmbeddedFrom) -> bool:
    """Return whether a set is the one that was embedded, or was appended to that one."""
    earlier = [version["digest"] for version in manifest.extra.get(VERSIONS, [])]
    return origin.digest in (manifest.digest, *earlier)
