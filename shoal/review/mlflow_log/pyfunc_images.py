"""Images for a served model of vectors that an encoder made of images: they are encoded before they get their cluster.

Such a model takes the vectors themselves, and images where the encoder is installed with the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.data.sets.prepared import DataSpec
from shoal.engine.store.embedded import EmbeddedFrom
from shoal.models.encoder_sources import EncoderError
from shoal.models.frozen import FrozenEncoder, encode_images, frozen_encoder
from shoal.review.mlflow_log.pyfunc_input import InputError, are_texts, samples, takes


@dataclass(frozen=True)
class EncodedInput:
    """The input of a model of embedded images.

    Attributes:
        spec: of the vectors that the model was trained on.
        origin: the images and the encoder that these vectors came from.
    """

    spec: DataSpec
    origin: EmbeddedFrom

    def takes(self) -> str:
        """Return what the model takes, in words."""
        return (
            f"vectors of encoder {self.origin.encoder.name}, {takes(self.spec)}; or, where that encoder is installed, "
            f"images: {takes(self.origin.spec)}"
        )

    def samples(self, request: Any) -> np.ndarray:
        """Return the vectors of a request, float32 (n, d), which holds vectors or images.

        Raises:
            InputError: it holds neither, or images that cannot be encoded here.
        """
        if are_texts(request):
            return self.encode(samples(request, self.origin.spec))
        try:
            return samples(request, self.spec)
        except InputError as error:
            no_vectors = error.message
        try:
            images = samples(request, self.origin.spec)
        except InputError:
            raise InputError(f"{no_vectors.partition(': expected ')[0]}: expected {self.takes()}") from None
        return self.encode(images)

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Return the vectors of images uint8 (n, channels, height, width).

        Raises:
            InputError: the encoder is not installed here, or has other weights.
        """
        try:
            encoder = self.encoder
        except EncoderError as error:
            raise InputError(
                f"images cannot be encoded here ({error}): install it, or send vectors, {takes(self.spec)}"
            ) from None
        return encode_images(encoder, images)

    @cached_property
    def encoder(self) -> FrozenEncoder:
        """The encoder, with the weights that made the vectors.

        Raises:
            EncoderError: it is not installed, or has other weights.
        """
        return frozen_encoder(self.origin.encoder.name, self.origin.encoder.sha256)
