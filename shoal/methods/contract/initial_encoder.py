"""The encoder that clients train, with the weights that it starts from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.data.views.augment import unnormalise
from shoal.methods.contract.context import Context, MethodError
from shoal.models.encoder_sources import EncoderError
from shoal.models.encoders import build_encoder
from shoal.models.frozen import pretrained_network, source_of
from shoal.models.preprocessing import COLOURS, Preprocessing


class PretrainedEncoder(nn.Module):
    """A pretrained network to train further: images normalised as for training to features (n, d).

    Args:
        network: prepared images to features.
        preprocessing: size and colours of the images that the network was trained on.
    """

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.preprocessing = preprocessing
        network.eval()
        with torch.no_grad():
            self.features = network(preprocessing.apply(torch.zeros(1, COLOURS, 8, 8))).shape[1]
        network.train()

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d)."""
        result: Tensor = self.network(self.preprocessing.apply(unnormalise(x)))
        return result


def initial_encoder(context: Context, encoder: str | None = None) -> nn.Module:
    """Return the encoder of a run as `model.start` sets it; `features` is the width of its output.

    Random weights come from torch's global generator.

    Args:
        context: of the run.
        encoder: its name, where it is not that of the settings.

    Raises:
        MethodError: the pretrained encoder is not installed, or its weights are not those expected.
    """
    model = context.model
    if model.start == "random":
        return build_encoder(encoder or model.encoder, context.spec.shape)
    try:
        network = pretrained_network(model.encoder, context.encoder_sha256)
        return PretrainedEncoder(network, source_of(model.encoder).preprocessing())
    except EncoderError as error:
        raise MethodError(f"model.encoder: {error}") from error
