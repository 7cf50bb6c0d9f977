"""Sizes are bounded before work: pictures, packed files and tables that announce more than they are."""

from __future__ import annotations

import base64
import gzip
import io
import lzma
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.intake import tables
from shoal.data.intake.image_decoding import MAX_PIXELS, decode
from shoal.data.intake.images import read_images
from shoal.data.intake.tables import read_table
from shoal.data.sets import readers
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import DataSpec, open_prepared
from shoal.review.mlflow_log.pyfunc_input import InputError, samples


def png_bomb(side: int) -> bytes:
    """A grey PNG of side x side, all zero, in a thousandth of that."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    whole = file.getvalue()
    rows = zlib.compressobj(9)
    line = bytes(side + 1)
    packed = b"".join(rows.compress(line) for _ in range(side)) + rows.flush()

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    sides = side.to_bytes(4, "big") * 2
    return whole[:8] + chunk(b"IHDR", sides + bytes([8, 0, 0, 0, 0])) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    side = int(MAX_PIXELS**0.5) + 10
    bomb = png_bomb(side)
    assert len(bomb) < 200_000
    (tmp_path / "a.png").write_bytes(bomb)
    tracemalloc.start()
    taken, rejected = read_images(["a.png"], tmp_path, (8, 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (taken, [each.path for each in rejected]) == ([], ["a.png"])
    assert f"{side}x{side} pixels, at most 50,000,000 in all are decoded" in rejected[0].reason
    assert peak < 5_000_000
    spec = DataSpec("photos", "image", (1, 8, 8), 10, 5, 0)
    with pytest.raises(InputError, match=r"image 0 cannot be read: .*pixels, at most"):
        samples([base64.b64encode(bomb).decode()], spec)
    assert decode(io.BytesIO(png_bomb(300))).shape == (300, 300)


def test_a_file_that_only_a_program_reads_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match="cannot identify image"):
        decode(tmp_path / "a.png")


@pytest.mark.long
@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_raw_files_unpack_to_so_much_and_no_more(suffix: str, pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_UNPACKED_BYTES", 1 << 20)
    assert len(readers.unpack(pack(bytes(1 << 20)), f"f{suffix}")) == 1 << 20
    zeros = pack(bytes(100 << 20))
    assert len(zeros) < 200_000
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"f\{suffix} unpacks to more than 1,048,576 bytes"):
        readers.unpack(zeros, f"f{suffix}")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    both = pack(b"a" * 10) + pack(b"b" * 10)
    assert readers.unpack(both, f"f{suffix}") == b"a" * 10 + b"b" * 10


def test_tables_announce_their_size_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"client,a\n" + b"1,2\n" * 20_000_000))
    with pytest.raises(DataError, match=r"t\.csv\.gz unpacks to more than 200 times its size"):
        read_table(path)
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.zeros(1000), "b": np.zeros(1000)}).to_parquet(path)
    monkeypatch.setattr(tables, "MAX_VALUES", 1999)
    with pytest.raises(DataError, match=r"t\.parquet announces 2,000 values, at most 1,999"):
        read_table(path)


def test_arrays_of_other_shapes_than_the_manifest_says(build) -> None:
    prepared = build([0, 1, 0])
    np.save(prepared.folder / "train_x.npy", np.zeros((4, 1, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"train_x of 'tiny' is uint8 \(4, 1, 4, 4\), expected uint8 \(3, 1, 4, 4\)"):
        open_prepared(prepared.folder)


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"could not be written to .*file/store/prepared/digits: Not a directory"):
        prepare("digits", tmp_path / "file" / "store")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"digits: No space left on device \(free some space, or set SHOAL_HOME\)"):
        prepare("digits", tmp_path / "store")
    assert not list((tmp_path / "store" / "prepared").iterdir())
