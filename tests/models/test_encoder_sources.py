"""Encoders of timm, torchvision and the user: found where they lie, known by their digest, never fetched."""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from shoal.models.encoder_sources import EncoderError
from shoal.models.frozen import encoder_version, frozen_encoder, is_installed, is_pretrained
from shoal.models.preprocessing import Preprocessing
from tests.scripted_encoder import write_scripted


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without weights, and empty caches."""
    for variable in ("SHOAL_HOME", "TORCH_HOME", "HF_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "encoders").mkdir()
    return tmp_path


def images(channels: int = 3) -> Tensor:
    return torch.rand(2, channels, 12, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["mine.pt", "deeper/mine.pt"])
def test_a_network_in_torchscript_is_found_below_the_home(home: Path, name: str) -> None:
    write_scripted(home / "encoders" / name)
    encoder = frozen_encoder(f"file:{name}")
    x = images()
    expected = Preprocessing().apply(x).mean((2, 3))
    assert encoder.features == 3
    torch.testing.assert_close(encoder(x), expected)
    assert encoder_version(f"file:{name}").sha256 == encoder_version(f"file:{home}/encoders/{name}").sha256


def test_images_are_prepared_as_imagenets() -> None:
    prepared = Preprocessing((32, 64)).apply(torch.full((1, 1, 40, 40), 0.5))
    assert prepared.shape == (1, 3, 64, 64)
    expected = [(0.5 - mean) / deviation for mean, deviation in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    torch.testing.assert_close(prepared[0, :, 7, 9], torch.tensor(expected))


def test_a_changed_file_is_refused(home: Path) -> None:
    path = home / "encoders" / "mine.pt"
    write_scripted(path)
    before = encoder_version("file:mine.pt").sha256
    frozen_encoder("file:mine.pt", before)
    write_scripted(path, factor=2.0)
    with pytest.raises(EncoderError, match="are not those that were used before"):
        frozen_encoder("file:mine.pt", before)


def test_a_network_that_makes_no_vector_is_refused(home: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Conv2d(3, 4, 3)).save(str(home / "encoders" / "map.pt"))
    with pytest.raises(EncoderError, match="expected one vector"):
        frozen_encoder("file:map.pt")


@pytest.mark.parametrize("content", [b"", b"PK not a network"])
def test_a_file_that_is_no_network_is_refused(home: Path, content: bytes) -> None:
    (home / "encoders" / "mine.pt").write_bytes(content)
    with pytest.raises(EncoderError, match="does not hold the weights"):
        frozen_encoder("file:mine.pt")


def test_torchvisions_weights_come_from_its_cache(home: Path) -> None:
    from torchvision.models import resnet18

    with pytest.raises(EncoderError, match=r"get_model\('resnet18', weights='DEFAULT'\)\" beforehand"):
        frozen_encoder("torchvision:resnet18")
    torch.manual_seed(0)
    network = resnet18(weights=None).eval()
    (home / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(network.state_dict(), home / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    encoder = frozen_encoder("torchvision:resnet18")
    network.fc = nn.Identity()
    x = images(1)
    torch.testing.assert_close(encoder(x), network(Preprocessing((224,)).apply(x)))
    assert encoder.features == 512
    assert encoder_version("torchvision:resnet18").package.startswith("torchvision ")


def test_own_weights_of_a_network_may_have_other_classes(home: Path) -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    network = resnet18(weights=None, num_classes=7)
    safetensors.torch.save_file(network.state_dict(), home / "encoders" / "mine.safetensors")
    encoder = frozen_encoder("torchvision:resnet18@mine.safetensors")
    assert torch.equal(encoder.network.conv1.weight, network.conv1.weight)  # type: ignore[union-attr]


def test_weights_of_another_network_are_refused(home: Path) -> None:
    safetensors.torch.save_file({"conv1.weight": torch.zeros(3)}, home / "encoders" / "mine.safetensors")
    with pytest.raises(EncoderError, match="does not hold the weights of encoder 'torchvision:resnet18@mine"):
        frozen_encoder("torchvision:resnet18@mine.safetensors")


def test_unknown_networks_are_named() -> None:
    assert not is_installed("torchvision:resnet99")
    with pytest.raises(EncoderError, match="has no classifier 'resnet99'"):
        frozen_encoder("torchvision:resnet99")


def test_timm_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "timm" else find(name))
    assert is_pretrained("timm:resnet18")
    assert not is_installed("timm:resnet18")
    with pytest.raises(EncoderError, match=r"run pip install timm"):
        frozen_encoder("timm:resnet18")


@pytest.mark.long
@pytest.mark.parametrize("file", ["resnet18.safetensors", "mine.safetensors"])
def test_timms_weights_and_preprocessing(home: Path, file: str) -> None:
    timm = pytest.importorskip("timm")
    name = "timm:resnet18" if file.startswith("resnet18") else f"timm:resnet18@{file}"
    with pytest.raises(EncoderError, match="is not installed"):
        frozen_encoder(name)
    torch.manual_seed(0)
    network = timm.create_model("resnet18", num_classes=1000 if name == "timm:resnet18" else 5).eval()
    safetensors.torch.save_file(network.state_dict(), home / "encoders" / file)
    encoder = frozen_encoder(name)
    config = timm.models.get_pretrained_cfg("resnet18")
    assert encoder.preprocessing.mean == tuple(config.mean)
    assert encoder.preprocessing.sides == (config.input_size[1],)
    assert encoder.preprocessing.interpolation == config.interpolation
    network.reset_classifier(0)
    x = images()
    torch.testing.assert_close(encoder(x), network(encoder.preprocessing.apply(x)))
    version = encoder_version(name)
    assert version.sha256 == hashlib.sha256((home / "encoders" / file).read_bytes()).hexdigest()
    assert version.package == f"timm {timm.__version__}"
    other = timm.create_model("resnet18", num_classes=1000 if name == "timm:resnet18" else 5)
    safetensors.torch.save_file(other.state_dict(), home / "encoders" / file)
    with pytest.raises(EncoderError, match="are not those that were used before"):
        frozen_encoder(name, version.sha256)
