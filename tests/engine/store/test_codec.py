import resource
from pathlib import Path

import pytest
import torch

from shoal.engine.store.codec import StoreError, load_server, load_tensors, save_message, save_server, save_tensors
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message


def test_tensors_that_share_memory_are_kept_apart(tmp_path):
    whole = torch.arange(6.0)
    tensors = {"a": whole, "b": whole, "c": whole[2:], "d": torch.ones(2)}
    save_tensors(tmp_path / "x.safetensors", tensors, {"n": 1})
    found, facts = load_tensors(tmp_path / "x.safetensors")
    assert facts == {"n": 1}
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)


def test_tensors_come_in_the_order_of_their_names_each_time(tmp_path):
    tensors = {f"layer{index}.weight": torch.full((index + 1,), float(index)) for index in range(10)}
    tensors["layer3.count"] = torch.tensor(7)
    save_tensors(tmp_path / "many.safetensors", tensors)
    for _ in range(5):
        found, _ = load_tensors(tmp_path / "many.safetensors")
        assert list(found) == sorted(tensors)


def test_a_broken_header_is_told_in_one_line_that_can_be_printed(tmp_path):
    save_tensors(tmp_path / "server.safetensors", {"weight": torch.ones(2)})
    whole = (tmp_path / "server.safetensors").read_bytes()
    (tmp_path / "server.safetensors").write_bytes(whole.replace(b"F32", b"F\xcc\xb2", 1))  # a combining line
    with pytest.raises(StoreError, match=r"server\.safetensors cannot be read: .*F") as error:
        load_tensors(tmp_path / "server.safetensors")
    assert str(error.value).isprintable()
    (tmp_path / "server.safetensors").write_bytes(whole.replace(b"F32", b"F\x7f2", 1))
    with pytest.raises(StoreError, match=r"server\.safetensors cannot be read: .*F\?2") as error:
        load_tensors(tmp_path / "server.safetensors")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("change", [(b'w\\"]', b'v\\"]'), (b'w\\"]', b'u\\"]'), (b'"facts":', b'"fects":')])
def test_a_state_that_does_not_hold_its_model_is_refused(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = tmp_path / "server.safetensors"
    save_server(path, Server({"v": torch.ones(1), "w": torch.ones(2)}))
    path.write_bytes(path.read_bytes().replace(*change))
    with pytest.raises(StoreError, match=r"server\.safetensors is damaged or of an older version"):
        load_server(path)


def test_a_message_that_does_not_fit_on_the_disk_names_its_file_and_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"a\.safetensors could not be written: File too large"):
            save_message(tmp_path / "a.safetensors", Message({"weights": torch.zeros(1000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
