"""Masks that hide a client's message from the server, and cancel in the sum over all clients of an attempt.

Each pair of clients agrees on a secret by X25519. HKDF makes of it a key for the round and the attempt, and ChaCha20 a
stream of whole numbers modulo 2^64, which the one client adds to its message and the other subtracts. A mask is the
same whenever it is made, and no other attempt has it.

Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", section 4.0.1,
without the recovery of lost clients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.core.private_file import make_private, read_private
from shoal.methods.averaging.noise import Normal, normal_of
from shoal.methods.contract.message import Tensors

KEYS = "keys"
"""Folder of a run with the secret key of each client, which is a part of the client's private memory."""
NONCE = bytes(16)
"""Each key gives one stream."""


def secret_key(run: Path, client: int) -> bytes:
    """Return the secret key of a client of a run, 32 bytes; the first call draws it from the operating system.

    Raises:
        PrivateFileError: others can read its file, or it is none.
    """
    path = run / KEYS / str(client)
    kept = read_private(path)
    if kept is None:
        make_private(path, os.urandom(32).hex())
        kept = read_private(path)
        assert kept is not None
    return bytes.fromhex(kept)


def public_key(run: Path, client: int) -> str:
    """Return what the other clients get of a client's key, in hex digits."""
    return X25519PrivateKey.from_private_bytes(secret_key(run, client)).public_key().public_bytes_raw().hex()


def keyed_bytes(secret: bytes, purpose: str) -> Callable[[int], bytes]:
    """Return a function that draws further bytes, of a stream that follows from a secret and a purpose."""
    key = HKDF(SHA256(), 32, salt=None, info=purpose.encode()).derive(secret)
    encryptor = Cipher(ChaCha20(key, NONCE), mode=None).encryptor()
    return lambda count: encryptor.update(bytes(count))


def keyed_normal(secret: bytes, purpose: str) -> Normal:
    """Return a draw of standard normal values that only the owner of a secret can repeat, for each purpose others."""
    return partial(normal_of, keyed_bytes(secret, purpose))


def masked(parts: Tensors, secret: bytes, client: int, others: Mapping[int, str], purpose: str) -> Tensors:
    """Return a client's parts of a sum with its masks added.

    Args:
        parts: int64, by name.
        secret: the client's key.
        client: its id.
        others: public keys of all clients of the attempt, by id.
        purpose: names the round and the attempt.
    """
    own = X25519PrivateKey.from_private_bytes(secret)
    total = np.concatenate([tensor.reshape(-1).numpy() for tensor in parts.values()])
    for other, public in others.items():
        if other == client:
            continue
        shared = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
        pair = f"{purpose}, clients {min(client, other)} and {max(client, other)}"
        mask = np.frombuffer(keyed_bytes(shared, pair)(8 * len(total)), np.int64)
        total = total + mask if client < other else total - mask
    split = torch.from_numpy(total).split([tensor.numel() for tensor in parts.values()])
    return {name: part.reshape(tensor.shape) for (name, tensor), part in zip(parts.items(), split, strict=True)}
