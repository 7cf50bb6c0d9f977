"""The task that makes vectors of the images of a data set."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import task

from shoal.lifecycle import embedding
from shoal.tasks.prefect.retries import RETRY_ON_IO


@dataclass(frozen=True)
class EmbeddedSet:
    """A set of vectors that an encoder made of images.

    Args:
        name: of the set.
        folder: where it lies.
        digest: of its bytes.
        message: what was done, in a sentence.
    """

    name: str
    folder: str
    digest: str
    message: str


@task(name="embed", **RETRY_ON_IO)
def embed(data: str, encoder: str, name: str | None = None) -> EmbeddedSet:
    """Make vectors of the images of a set, unless that was done before.

    Args:
        data: the set of images.
        encoder: a pretrained encoder.
        name: of the new set; none: DATA-ENCODER.

    Raises:
        ShoalError: the set holds no images, the encoder is not here, or the name is taken.
    """
    done = embedding.embed(data, encoder, name)
    message = "; ".join(part for part in (done.message, done.warning) if part)
    manifest = done.prepared.manifest
    return EmbeddedSet(manifest.name, str(done.prepared.folder), manifest.digest, message)
