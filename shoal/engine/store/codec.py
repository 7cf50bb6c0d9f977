"""Tensors, messages and server states on disk: safetensors with JSON beside it, written atomically."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from shoal.core.digests import file_digest
from shoal.core.durable import replacing, write_file
from shoal.core.errors import FailureCause, ShoalError, short_text
from shoal.core.seal import BrokenSeal, sealed, unsealed
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message, Tensors

MIN_THREAD_BYTES = 1 << 18
"""Size of a message from which a thread for it saves more time than it costs."""
SAMPLES = "samples:"
"""Prefix of the names of index tensors that stand for raw samples."""
PRIVATE = 0o600
"""The mode of files with messages and memories of clients: only the user may read them."""


class StoreError(ShoalError):
    """A file of a run cannot be written or read."""

    failure_cause = FailureCause.FILE


def write_atomic(path: Path, content: bytes, *, sync: bool = True, mode: int = 0o666) -> None:
    """Write a file under a scratch name and rename it, so that a reader sees the whole file or none.

    Args:
        path: the file; its folder must exist.
        content: the bytes.
        sync: also wait until they are on the disk.
        mode: permissions of the file, from which the umask is subtracted.

    Raises:
        StoreError: the disk is full, or the file cannot be written.
    """
    with writing(path):
        write_file(path, content, sync=sync, sync_name=False, mode=mode)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file or a folder within this context.

    Raises:
        StoreError: the disk is full, or the path cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk is full: {path} could not be written. Finished rounds are safe: free some space, then "
                "continue with `shoal run --resume RUN`"
            ) from error
        raise StoreError(f"{path} could not be written: {error.strerror or error}") from error


def write_json(path: Path, value: Any, *, sync: bool = True, mode: int = 0o666) -> None:
    """Write a JSON value atomically; each entry of an object has a line."""
    if not isinstance(value, dict):
        text = json.dumps(value, sort_keys=True)
    else:
        # With an indent `json` uses an encoder that is written in Python and takes ten times as long.
        entries = (json.dumps({name: value[name]}, sort_keys=True)[1:-1] for name in sorted(value))
        text = "{\n" + ",\n".join(entries) + "\n}"
    write_atomic(path, f"{text}\n".encode(), sync=sync, mode=mode)


def write_sealed(path: Path, record: dict[str, Any], *, sync: bool = True, mode: int = 0o666) -> None:
    """Write a JSON object atomically, with a digest of its entries."""
    write_json(path, sealed(record), sync=sync, mode=mode)


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object, and compare it with the digest in it, if it has one.

    Raises:
        StoreError: it is missing, not JSON, or changed since it was written.
    """
    try:
        return unsealed(read_json(path))
    except BrokenSeal as error:
        raise StoreError(f"{path} cannot be trusted: {error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON value.

    Raises:
        StoreError: it is missing, or not JSON.
    """
    try:
        return json.loads(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({short_text(error)})") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Any = None, *, sync: bool = True) -> None:
    """Write tensors by name, and a JSON value, to one safetensors file.

    Raises:
        StoreError: see `write_atomic`.
    """
    write_atomic(path, tensor_bytes(tensors, facts), sync=sync)


def tensor_bytes(tensors: Mapping[str, Tensor], facts: Any = None) -> bytes:
    """Return tensors by name, and a JSON value, as the bytes of a safetensors file."""
    return safetensors.torch.save(stored(tensors), {"facts": json.dumps(facts)})


def stored(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return tensors as the format takes them: on the CPU, contiguous, none in the memory of another."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    storages: set[int] = set()
    for name, tensor in on_cpu.items():
        if tensor.untyped_storage().data_ptr() in storages:
            on_cpu[name] = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
    return on_cpu


def load_tensors(path: Path, device: torch.device | str = "cpu", sha256: str | None = None) -> tuple[Tensors, Any]:
    """Read tensors by name, in the order of the names, and the JSON value beside them.

    Args:
        path: the file.
        device: device of the tensors.
        sha256: hex digest that the file must have; None: it is not known.

    Raises:
        StoreError: it is missing, truncated, not a safetensors file, or has another digest.
    """
    return tensors_of(read_file(path, sha256), path, device)


def tensors_of(content: bytes, name: object, device: torch.device | str = "cpu") -> tuple[Tensors, Any]:
    """Return the tensors and the JSON value in the bytes of a safetensors file, whose name errors give.

    Raises:
        StoreError: the bytes are no safetensors file.
    """
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")  # of the header, which is JSON
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        facts = json.loads(metadata.get("facts", "null"))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{name} cannot be read: {short_text(error)}") from error
    # Sorted, because the library returns them in any order, and the bits of sums depend on the order.
    return {key: tensors[key].to(device) for key in sorted(tensors)}, facts


def save_message(path: Path, message: Message) -> str:
    """Write a message or memory of a client, and return the hex sha256 of its bytes.

    The file is not synced: if a power cut loses it, the client is trained again.
    """
    samples = {SAMPLES + name: index for name, index in message.samples.items()}
    tensors = stored({**message.tensors, **samples})
    with writing(path), replacing(path) as scratch:
        scratch.touch(PRIVATE)
        try:  # in less time than as bytes
            safetensors.torch.save_file(tensors, scratch, {"facts": json.dumps(message.facts)})
        except safetensors.SafetensorError:  # which does not say whether the disk is full
            scratch.write_bytes(tensor_bytes(tensors, message.facts))
        return file_digest(scratch)


def load_message(path: Path, device: torch.device | str = "cpu", sha256: str | None = None) -> Message:
    """Read a message; arguments and errors as of `load_tensors`."""
    tensors, facts = load_tensors(path, device, sha256)
    samples = {k.removeprefix(SAMPLES): t for k, t in tensors.items() if k.startswith(SAMPLES)}
    return Message({k: t for k, t in tensors.items() if not k.startswith(SAMPLES)}, facts, samples)


def save_server(path: Path, server: Server, *, sync: bool = True) -> None:
    """Write a server state."""
    write_atomic(path, server_bytes(server), sync=sync)


def server_bytes(server: Server) -> bytes:
    """Return a server state as the bytes of its file."""
    facts = {
        "round": server.round,
        "finished": server.finished,
        "facts": server.facts,
        "model": sorted(server.model),
    }
    return tensor_bytes(server.tensors, facts)


def load_server(path: Path, device: torch.device | str = "cpu", sha256: str | None = None) -> Server:
    """Read a server state; arguments as of `load_tensors`.

    Raises:
        StoreError: see `load_tensors`; or the file lacks an entry, or a tensor of the model.
    """
    tensors, record = load_tensors(path, device, sha256)
    try:
        model = {name: tensors.pop(name) for name in record["model"]}
        return Server(model, tensors, record["facts"], record["round"], record["finished"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged or of an older version ({short_text(error)}): run it again") from error


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 over name, dtype, shape and bytes of each tensor: equal digests mean equal bits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def server_digest(server: Server) -> str:
    """Return the sha256 of a server state: its tensors and its facts."""
    digest = hashlib.sha256(tensors_digest(server.tensors).encode())
    digest.update(json.dumps(server.facts, sort_keys=True).encode())
    return digest.hexdigest()


def check_digest(path: Path, sha256: str | None) -> None:
    """Compare a file with its recorded digest; None: none was recorded.

    Raises:
        StoreError: it is missing, or has another digest.
    """
    if sha256 is not None:
        read_file(path, sha256)


def changed_error(path: Path) -> StoreError:
    """Return the error for a file that does not have its recorded digest."""
    return StoreError(f"{path} has been changed or damaged since it was written (its digest is another)")


def read_file(path: Path, sha256: str | None = None) -> bytes:
    """Read all bytes of a file.

    Args:
        path: the file.
        sha256: hex digest that it must have; None: it is not known.

    Raises:
        StoreError: it is missing, cannot be read, or has another digest.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise changed_error(path)
    return content
