"""The published files of each data set, with their checksums and addresses.

md5 of MNIST, Fashion-MNIST and the Python versions of CIFAR: from torchvision. md5 of AG News: from torchtext. sha256:
of the mirror's files, from its README.
"""

from __future__ import annotations

import re
from pathlib import Path

from shoal.core.durable import write_file
from shoal.core.errors import DataError, short_text
from shoal.data.sets.readers import MAX_UNPACKED_BYTES
from shoal.data.sets.sources import Layout, RawFile, verify


def _layout(name: str, folder: str, files: dict[str, str], optional: dict[str, str] | None = None) -> Layout:
    return Layout(
        name,
        tuple(RawFile(f"{folder}/{file}", digest) for file, digest in files.items()),
        tuple(RawFile(f"{folder}/{file}", digest) for file, digest in (optional or {}).items()),
    )


MNIST = (
    _layout(
        "idx",
        "MNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
)
FASHION_MNIST = (
    _layout(
        "idx",
        "FashionMNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
)
CIFAR10 = (
    _layout(
        "python",
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    # The mirror's test_batch.bin: 20 of its images come from a JPEG copy, listed in the file beside it.
    _layout(
        "binary",
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "123ca0dad8f960344d9149742165d4215093c84c8c4bdc5922af93b614bdb501",
        },
        {"test_batch.jpeg_indices.txt": "c2c3935966c8c25550e5164c0a77c23a9416d81d5edb04e3e6ca1fe4c43ed638"},
    ),
)
CIFAR100 = (
    _layout(
        "python",
        "cifar-100-python",
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        {"meta": "7973b15100ade9c7d40fb424638fde48"},
    ),
    # Only the archive of the binary version has a published checksum, its members have none.
    _layout("binary", "cifar-100-binary", {"train.bin": "", "test.bin": ""}, {"fine_label_names.txt": ""}),
)
AG_NEWS_ROWS = 120_000
AG_NEWS = (
    _layout(
        "full",
        "ag_news_csv",
        {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"},
    ),
    _layout(
        "subset",
        "ag_news_csv",
        {
            "train_subset.csv.gz": "2396e7b1dbec1acb3959fb53b673fe0a526f086fd07a172bf11640060f532c62",
            "test.csv": "d52ea96a97a2d943681189a97654912d",
        },
    ),
)
AG_NEWS_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"


def download_torchvision(dataset: str, root: Path) -> None:
    """Download MNIST, FashionMNIST, CIFAR10 or CIFAR100 below `root` with torchvision.

    Raises:
        OSError, RuntimeError: there is no network, or a checksum is wrong.
    """
    from torchvision import datasets  # slow to import, and rarely needed

    getattr(datasets, dataset)(root=root, train=True, download=True)


def download_ag_news(root: Path) -> None:
    """Download the two CSV files of AG News below `root`, and verify them.

    Raises:
        OSError: there is no network, or the request is refused (requests' errors are OSErrors).
        DataError: a checksum is wrong, or the file has more bytes than any official one.
    """
    import requests

    folder = root / "ag_news_csv"
    folder.mkdir(parents=True, exist_ok=True)
    for file in AG_NEWS[0].files:
        name = Path(file.path).name
        url = f"{AG_NEWS_URL}/{name}"
        content = bytearray()
        with requests.get(url, timeout=60, stream=True) as response:
            response.raise_for_status()
            for block in response.iter_content(1 << 20):
                content += block
                if len(content) > MAX_UNPACKED_BYTES:
                    raise DataError(f"{url} sends more than {MAX_UNPACKED_BYTES:,} bytes: it is not the published file")
        verify(content, file.digest, url)
        write_file(folder / name, bytes(content))


def names_of_lines(content: bytes | None, name: str = "a list of names") -> tuple[str, ...]:
    """Return the lines of a list of names; an empty tuple without a file.

    Raises:
        DataError: the file is not text.
    """
    try:
        return tuple(line.strip() for line in (content or b"").decode("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not text in UTF-8 ({short_text(error)}): get the file again") from error


def numbers_of_lines(content: bytes | None, name: str) -> list[int]:
    """Return the whole numbers of a list, one a line.

    Raises:
        DataError: the file is not text, or a line is not a whole number.
    """
    lines = names_of_lines(content, name)
    for number, line in enumerate(lines, 1):
        if not re.fullmatch(r"[0-9]{1,9}", line):
            raise DataError(f"{name}, entry {number}: {line[:40]!r} is not a whole number: get the file again")
    return [int(line) for line in lines]
