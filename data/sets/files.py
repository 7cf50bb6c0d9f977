"""The published files of each data set, with their checksums and addresses.

md5 of MNIST and Fashion-MNIST: from torchvision; of AG News: from torchtext. sha256: of the mirror's files, from its
README. A folder of raw files is laid out as torchvision lays out its root folder:

    MNIST/raw/*.gz  FashionMNIST/raw/*.gz
    cifar-10-batches-py/ or cifar-10-batches-bin/*.bin[.xz|.gz]  cifar-100-python/
    ag_news_csv/{train.csv[.gz] or train_subset.csv[.gz], test.csv[.gz]}
"""

from __future__ import annotations

from pathlib import Path

DIGESTS = {
    "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "FashionMNIST/raw/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "FashionMNIST/raw/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "FashionMNIST/raw/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar-10-batches-bin/test_batch.bin": "123ca0dad8f960344d9149742165d4215093c84c8c4bdc5922af93b614bdb501",
    "ag_news_csv/train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
    "ag_news_csv/test.csv": "d52ea96a97a2d943681189a97654912d",
    "ag_news_csv/train_subset.csv.gz": "2396e7b1dbec1acb3959fb53b673fe0a526f086fd07a172bf11640060f532c62",
}
"""md5 or sha256, hexadecimal, of each file by its path; a file that is stored packed is unpacked first."""
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MNIST = tuple(f"MNIST/raw/{name}.gz" for name in IDX)
FASHION_MNIST = tuple(f"FashionMNIST/raw/{name}.gz" for name in IDX)
CIFAR10 = tuple(path for path in DIGESTS if path.startswith("cifar-10-batches-bin/"))
AG_NEWS = ("ag_news_csv/train.csv", "ag_news_csv/test.csv")
AG_NEWS_SUBSET = ("ag_news_csv/train_subset.csv.gz", "ag_news_csv/test.csv")
AG_NEWS_ROWS = 120_000
AG_NEWS_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data"


def download_torchvision(dataset: str, root: Path) -> None:
    """Download MNIST or FashionMNIST below `root` with torchvision.

    Raises:
        OSError, RuntimeError: there is no network, or a checksum is wrong.
    """
    from torchvision import datasets  # slow to import, and rarely needed

    getattr(datasets, dataset)(root=root, train=True, download=True)


def download_ag_news(root: Path) -> None:
    """Download the two CSV files of AG News below `root`.

    Raises:
        OSError, RuntimeError: there is no network, or a checksum is wrong.
    """
    from torchvision.datasets.utils import download_url

    for path in AG_NEWS:
        download_url(f"{AG_NEWS_URL}/{path}", root / Path(path).parent, md5=DIGESTS[path])
