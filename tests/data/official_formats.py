"""Writes tiny files in the official formats of the real sets, and their checksums."""

import csv
import gzip
import hashlib
import io
import lzma
import pickle
from pathlib import Path

import numpy as np


def idx_bytes(array):
    header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def cifar_bytes(images, labels):
    return np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], axis=1).tobytes()


def csv_bytes(rows):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def gzip_bytes(content):
    # Without a time stamp: equal content gives equal bytes.
    return gzip.compress(content, mtime=0)


def put(root: Path, path: str, content: bytes, packing: str = "") -> str:
    """Write a file, packed on request; returns the sha256 of the unpacked content."""
    target = root / (path + packing)
    target.parent.mkdir(parents=True, exist_ok=True)
    pack = {"": bytes, ".gz": gzip_bytes, ".xz": lzma.compress}[packing]
    target.write_bytes(pack(content))
    return sha256(content)


def tiny_images(n, shape=(28, 28), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write_idx_set(root, folder, train=20, test=5):
    """An MNIST-like set; returns arrays and checksums (of the .gz files, as torchvision lists them)."""
    arrays = {
        "train-images-idx3-ubyte": tiny_images(train),
        "train-labels-idx1-ubyte": np.arange(train) % 10,
        "t10k-images-idx3-ubyte": tiny_images(test, seed=1),
        "t10k-labels-idx1-ubyte": np.arange(test) % 10,
    }
    checksums = {}
    for name, array in arrays.items():
        path = f"{folder}/{name}.gz"
        checksums[path] = put(root, path, gzip_bytes(idx_bytes(array)))
    return arrays, checksums


def write_cifar10_binary(root, packing=".xz", batch=4):
    arrays, checksums = {}, {}
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        images, labels = tiny_images(batch, (3, 32, 32), seed=i), (np.arange(batch) + i) % 10
        path = f"cifar-10-batches-bin/{name}.bin"
        checksums[path] = put(root, path, cifar_bytes(images, labels), packing)
        arrays[name] = (images, labels)
    return arrays, checksums


def write_cifar_python(root, folder, names, key, batch=4):
    """Write a Python version; returns arrays, and name and md5 of each file as torchvision lists them."""
    arrays = {}
    listed = []
    for i, name in enumerate(names):
        images, labels = tiny_images(batch, (3, 32, 32), seed=i), (np.arange(batch) + i) % 10
        content = pickle.dumps({"data": images.reshape(batch, -1), key: labels.tolist(), "batch_label": name}, 2)
        put(root, f"{folder}/{name}", content)
        listed.append([name, hashlib.md5(content, usedforsecurity=False).hexdigest()])
        arrays[name] = (images, labels)
    return arrays, listed


NEWS = [
    (1, "Vote in the capital", "The vote, it's said, was close."),
    (2, "Cup final", "The final was close; the cup goes south."),
    (3, "Oil soars", "Oil prices\\soar, the market said."),
    (4, "New chip", 'A chip named "Tern" is close.'),
]


def write_ag_news(root, train="train.csv", packing="", repeats=3):
    rows, test = NEWS * repeats, [(1, "Unseen words", "zebra quagga vote"), (2, "Cup", "the cup")]
    checksums = {}
    for name, content, pack in ((train, csv_bytes(rows), packing), ("test.csv", csv_bytes(test), ".gz")):
        if name.endswith(".gz"):
            content = gzip_bytes(content)
        checksums[f"ag_news_csv/{name}"] = put(root, f"ag_news_csv/{name}", content, pack)
    return checksums
