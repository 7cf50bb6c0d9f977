"""The encoder of a federated clustering of vectors: it is never trained, so every image is encoded once."""

from __future__ import annotations

from collections.abc import MutableMapping

from torch import Tensor, nn

from shoal.data.views.augment import normalise
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.training.local import seeded
from shoal.models.encoder_sources import EncoderError
from shoal.models.encoders import PIXELS, build_encoder
from shoal.models.frozen import frozen_encoder, is_pretrained

ENCODER = "frozen encoder"
"""Its purpose among the networks that a method has drawn."""


class UntrainedNetwork(nn.Module):
    """A network with its initial weights: images in [0, 1] to features, normalised as for training."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.features = network.features

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, features)."""
        result: Tensor = self.network(normalise(x))
        return result


def encoder_of(context: Context, drawn: MutableMapping[str, nn.Module]) -> nn.Module | None:
    """Return the encoder that `model.encoder` names, loaded once; None where vectors are samples as they are.

    A name without pretrained weights gives the untrained network, with the initial weights that the seed draws: a
    baseline that tells what the architecture alone is worth.

    Args:
        context: of the run.
        drawn: networks that the method keeps, by purpose.

    Raises:
        MethodError: the encoder is not installed, or its weights are not those expected.
    """
    if context.spec.kind != "image" or context.model.encoder == PIXELS:
        return None
    if ENCODER not in drawn:
        name = context.model.encoder
        if is_pretrained(name):
            try:
                network: nn.Module = frozen_encoder(name, context.encoder_sha256)
            except EncoderError as error:
                raise MethodError(f"model.encoder: {error}") from error
        else:
            network = UntrainedNetwork(seeded(lambda: build_encoder(name, context.spec.shape), context, ENCODER))
        drawn[ENCODER] = network.to(context.device).eval()
    return drawn[ENCODER]
