"""Embedded sets: vectors that an encoder computed from a set of images; and the way back to the images.

The manifest of an embedded set has an `EmbeddedFrom` as the entry `embedded` of its `extra`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json
from shoal.data.intake.own_store import VERSIONS
from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import DataSpec, Manifest, PreparedSet, open_prepared, read_manifest
from shoal.data.sets.remedy import EMBEDDED
from shoal.engine.settings import places
from shoal.models.frozen import EncoderVersion

DRAWABLE_KINDS = ("image", "series")
"""Kinds of data whose samples can be drawn."""
COLUMN_PREFIX = "embedding_"
"""Prefix of the columns of a table of such vectors: embedding_0, embedding_1, and so on."""


@dataclass(frozen=True)
class EmbeddedFrom:
    """The origin of the vectors of a set.

    Attributes:
        images: name of the set of images.
        digest: digest of that set.
        shape: shape of an image.
        on_odd: what to do with new images of another size: `resize` or `skip`.
        encoder: the encoder.
        device: where it computed: cpu or cuda, whose last bits differ.
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
    """Return the origin of the vectors of a set; None for a set that is not embedded.

    Raises:
        DataError: the entry in the manifest is damaged.
    """
    if EMBEDDED not in manifest.extra:
        return None
    try:
        return record_from_json(EmbeddedFrom, manifest.extra[EMBEDDED])
    except BadRecord as error:
        raise DataError(
            f"the manifest of {manifest.name!r} is damaged: its entry {EMBEDDED!r} does not name the images: {error}"
        ) from None


def embedded_set(name: str) -> EmbeddedFrom | None:
    """Return which images and encoder the present set of a name comes from; None where no encoder made it."""
    folder = store_folder(places.store(), name)
    if not (folder / "manifest.json").exists():
        return None
    return embedded_from(read_manifest(folder))


def images_behind(prepared: PreparedSet) -> PreparedSet | None:
    """Return the set that shows the samples of a set: itself if they can be drawn, else the images before embedding.

    A set of images that has grown since still has the embedded images, with the same numbers.

    Returns:
        None: the set has no images, or its images are missing or have changed (`why_no_images`).
    """
    if prepared.manifest.kind in DRAWABLE_KINDS:
        return prepared
    origin = embedded_from(prepared.manifest)
    if origin is None:
        return None
    images = _image_set(prepared, origin)
    if images is None:
        return None
    return images if has_version(images.manifest, origin.digest) else None


def has_version(manifest: Manifest, digest: str) -> bool:
    """Return whether a set is that of a digest, or has grown from it: the samples of then have the same numbers."""
    earlier = [version["digest"] for version in manifest.extra.get(VERSIONS, [])]
    return digest in (manifest.digest, *earlier)


def why_no_images(prepared: PreparedSet) -> str | None:
    """Return why the images of an embedded set cannot be shown; None if they can, and for other sets."""
    origin = embedded_from(prepared.manifest)
    if origin is None or images_behind(prepared) is not None:
        return None
    if _image_set(prepared, origin) is None:
        return f"the images of {prepared.manifest.name!r} are not shown: the set {origin.images!r} is not here"
    return f"the images of {prepared.manifest.name!r} are not shown: {changed_images(prepared)}"


def changed_images(prepared: PreparedSet) -> str:
    """Return the sentence that the images of an embedded set have changed."""
    name = prepared.manifest.name
    origin = embedded_from(prepared.manifest)
    assert origin is not None
    return (
        f"the set {origin.images!r} has changed since it was embedded: run `shoal data embed {origin.images} --encoder "
        f"{origin.encoder.name} --name {name}` again"
    )


def is_stale(prepared: PreparedSet) -> bool:
    """Return whether the images of an embedded set have changed, or become more, since they were embedded."""
    origin = embedded_from(prepared.manifest)
    if origin is None:
        return False
    images = _image_set(prepared, origin)
    return images is not None and images.manifest.digest != origin.digest


def _image_set(prepared: PreparedSet, origin: EmbeddedFrom) -> PreparedSet | None:
    """Return the set of images of an embedded set, from the same store; None if it is missing or damaged."""
    try:
        return open_prepared(store_folder(prepared.folder.parent.parent, origin.images))
    except DataError:
        return None
