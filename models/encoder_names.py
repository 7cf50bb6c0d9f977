"""The names of pretrained encoders that a user brings.

timm:resnet18.a1_in1k                weights in the cache of Hugging Face or torch.hub
torchvision:resnet18                 weights in the cache of torch.hub
timm:resnet18@weights.safetensors    the user's own weights of that network (also torchvision:NAME@FILE)
file:network.pt                      a whole network in TorchScript
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMS = "timm:NAME or torchvision:NAME (their own weights, or NAME@FILE), file:TORCHSCRIPT"
"""The forms in words."""
PATTERN = r"^((timm|torchvision):[A-Za-z0-9_.-]+(@.+)?|file:.+)$"
"""The forms as a regular expression."""


@dataclass(frozen=True)
class EncoderName:
    """The parts of a name.

    Attributes:
        library: timm, torchvision or file.
        network: the name of the network in its library; empty for a file.
        file: of the user's weights, or of a whole network; empty for weights from the library's cache.
    """

    library: str
    network: str
    file: str


def parse(name: str) -> EncoderName | None:
    """Return the parts of a user's encoder; None for another name.

    >>> parse("timm:resnet18@mine.safetensors")
    EncoderName(library='timm', network='resnet18', file='mine.safetensors')
    >>> parse("small-conv")
    """
    if re.match(PATTERN, name) is None:
        return None
    library, _, rest = name.partition(":")
    if library == "file":
        return EncoderName(library, "", rest)
    network, _, file = rest.partition("@")
    return EncoderName(library, network, file)


def slug(name: str) -> str:
    """Return an encoder's name as the end of a data set's name.

    >>> slug("timm:resnet18@models/mine.safetensors")
    'timm-resnet18-mine'
    """
    parts = parse(name)
    if parts is None:
        text = name
    else:
        stem = parts.file.replace("\\", "/").rpartition("/")[2]
        stem = re.sub(r"\.(pt|pth|ts|safetensors|bin)$", "", stem)
        text = "-".join(part for part in (parts.library, parts.network, stem) if part)
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")
