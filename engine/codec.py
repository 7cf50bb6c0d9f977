"""Tensors, messages and server states on disk: safetensors with JSON beside it, written atomically."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from core.errors import ShoalError
from methods.base import Message, Server, Tensors

SAMPLES = "samples:"
"""Prefix of the names of index tensors that stand for raw samples."""


class StoreError(ShoalError):
    """A file of a run cannot be written or read."""


def write_atomic(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file beside its place and rename it there, so that a reader never sees half of it.

    Args:
        path: the final place; its folder must exist.
        content: the bytes.
        sync: also wait until they are on the disk.

    Raises:
        StoreError: the disk is full, or the place cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> StoreError:
    """The error to show when writing `path` failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk is full: {path} could not be written. Nothing finished is lost: free some space, then go on "
            "with `shoal run --resume RUN`"
        )
    return StoreError(f"{path} could not be written: {error.strerror or error}")


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """Write a JSON value atomically."""
    write_atomic(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), sync=sync)


def read_json(path: Path) -> Any:
    """Read a JSON value.

    Raises:
        StoreError: missing, or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except ValueError as error:
        raise StoreError(f"{path} is not JSON ({error})") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Any = None, *, sync: bool = True) -> None:
    """Write tensors by name, and a JSON value, to one safetensors file.

    Raises:
        StoreError: see `write_atomic`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():
        # The format has no two names for one memory: the second gets a copy.
        if tensor.untyped_storage().data_ptr() in seen:
            plain[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    write_atomic(path, safetensors.torch.save(plain, {"facts": json.dumps(facts)}), sync=sync)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[Tensors, Any]:
    """Tensors by name, and the JSON value beside them.

    Raises:
        StoreError: missing, truncated, or not a safetensors file.
    """
    try:
        with safetensors.safe_open(str(path), framework="pt", device=str(device)) as file:
            facts = json.loads((file.metadata() or {}).get("facts", "null"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def save_message(path: Path, message: Message) -> None:
    """Write a message; not synced: a message that is lost with the power is computed again."""
    samples = {SAMPLES + name: index for name, index in message.samples.items()}
    save_tensors(path, {**message.tensors, **samples}, message.facts, sync=False)


def load_message(path: Path, device: torch.device | str = "cpu") -> Message:
    """Read a message.

    Raises:
        StoreError: see `load_tensors`.
    """
    tensors, facts = load_tensors(path, device)
    samples = {k.removeprefix(SAMPLES): t for k, t in tensors.items() if k.startswith(SAMPLES)}
    return Message({k: t for k, t in tensors.items() if not k.startswith(SAMPLES)}, facts, samples)


def save_server(path: Path, server: Server, *, sync: bool = True) -> None:
    """Write a server state."""
    facts = {"round": server.round, "finished": server.finished, "facts": server.facts}
    save_tensors(path, server.tensors, facts, sync=sync)


def load_server(path: Path, device: torch.device | str = "cpu") -> Server:
    """Read a server state.

    Raises:
        StoreError: see `load_tensors`.
    """
    tensors, about = load_tensors(path, device)
    return Server(tensors, about["facts"], about["round"], about["finished"])


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over name, dtype, shape and bytes of each tensor, by name: equal digests mean equal bits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def server_digest(server: Server) -> str:
    """sha256 of a server state: its tensors and its facts."""
    digest = hashlib.sha256(tensors_digest(server.tensors).encode())
    digest.update(json.dumps(server.facts, sort_keys=True).encode())
    return digest.hexdigest()


def file_digest(path: Path, new: Callable[[], Any] = hashlib.sha256) -> str:
    """Hex digest of a file's bytes."""
    digest = new()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
