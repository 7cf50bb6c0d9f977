"""Every conversion of an image is right and said, or the image is refused with the reason."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from shoal.data.intake.image_decoding import Unusable, avif_bits, decode, decode_with_changes, header_size

WHITE_GROUND = "transparent ground composed to white"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By PNG colour type."""


def saved(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def png(depth: int, colour: int, rows: list[bytes], *chunks: bytes) -> io.BytesIO:
    """A PNG as Pillow cannot write them."""
    width = len(rows[0]) * 8 // depth // SAMPLES[colour]
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    whole = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"".join(whole))


def tiff(width: int, bits: int, pixels: bytes, photometric: int = 1, **tags: int) -> io.BytesIO:
    """A grey TIFF of one row."""
    entries = {256: width, 257: 1, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1, 278: 1, 279: len(pixels)}
    entries |= {int(name.removeprefix("tag")): value for name, value in tags.items()}
    entries[273] = 8 + 2 + 12 * len(entries) + 4
    table = b"".join(struct.pack("<HHLHH", tag, 3, 1, entries[tag], 0) for tag in sorted(entries))
    return io.BytesIO(b"II*\0" + struct.pack("<LH", 8, len(entries)) + table + struct.pack("<L", 0) + pixels)


def kinds(file: io.BytesIO) -> list[str]:
    return [kind for kind, _ in decode_with_changes(file).changes]


def test_a_transparent_ground_becomes_white() -> None:
    drawing = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    drawing.putpixel((1, 0), (10, 20, 30, 255))
    drawing.putpixel((2, 0), (0, 0, 0, 51))  # a fifth of black
    file = saved(drawing, "PNG")
    assert decode(file).tolist() == [[[255] * 3, [10, 20, 30], [204] * 3]]
    assert kinds(file) == [WHITE_GROUND]
    grey = Image.new("LA", (2, 1), (7, 255))
    assert kinds(saved(grey, "PNG")) == []
    grey.putpixel((0, 0), (7, 0))
    assert decode(saved(grey, "PNG")).tolist() == [[255, 7]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 8, 7, 1, 2, 3])
    palette.putpixel((1, 0), 1)
    file = saved(palette, "GIF", transparency=1)
    assert decode(file).tolist() == [[[9, 8, 7], [255] * 3]]
    assert kinds(file) == [WHITE_GROUND]


@pytest.mark.parametrize(
    ("depth", "row", "clear", "expected"),
    [
        (1, b"\x40", 0, [255, 255, 255, 255, 255, 255, 255, 255]),
        (2, b"\x1b", 1, [0, 255, 170, 255]),
        (4, b"\x3a", 3, [255, 170]),
        (8, b"\x03\x04", 3, [255, 4]),
        (16, b"\xff\xff\x01\x02\x80\x80", 0x0102, [255, 255, 128]),
    ],
)
def test_one_transparent_grey_becomes_white(depth: int, row: bytes, clear: int, expected: list[int]) -> None:
    file = png(depth, 0, [row], chunk(b"tRNS", struct.pack(">H", clear)))
    assert decode(file).tolist() == [expected]
    assert WHITE_GROUND in kinds(file)
    if depth > 2:
        assert WHITE_GROUND not in kinds(png(depth, 0, [row], chunk(b"tRNS", b"\x00\x00")))


def test_deep_greys_are_scaled_and_said() -> None:
    assert decode(tiff(2, 16, struct.pack("<HH", 257, 65535))).tolist() == [[1, 255]]
    assert kinds(tiff(2, 16, struct.pack("<HH", 257, 65535))) == ["16-bit greys scaled to 8 bits"]
    twelve = tiff(2, 12, b"\xff\xf8\x00")  # 4095 and 2048
    assert decode(twelve).tolist() == [[255, 128]]
    assert kinds(twelve) == ["12-bit greys scaled to 8 bits"]
    assert decode(io.BytesIO(b"P5 2 1 4095\n" + struct.pack(">HH", 4095, 2048))).tolist() == [[255, 128]]
    floats = saved(Image.fromarray(np.array([[0, 0.5, 1]], np.float32)), "TIFF")
    assert kinds(floats) == ["floating-point greys scaled to 8 bits"]
    negative = tiff(2, 16, struct.pack("<HH", 0, 65535), photometric=0)
    assert decode(negative).tolist() == [[255, 0]]
    assert "a negative (white is zero) turned positive" in kinds(negative)


def test_deep_greys_that_would_lose_their_shapes_are_refused() -> None:
    with pytest.raises(Unusable, match="none is above 4095, so that 8 bits would keep 16 of 256 levels: scale"):
        decode(png(16, 0, [struct.pack(">HH", 4095, 2048)]))
    with pytest.raises(Unusable, match="none is above 200, so that 8 bits would keep 1 of 256"):
        decode(tiff(2, 16, struct.pack("<HH", 200, 0)))
    assert decode(tiff(2, 16, bytes(4))).tolist() == [[0, 0]]  # black loses nothing
    assert decode(tiff(2, 16, struct.pack("<HH", 4096, 0))).tolist() == [[16, 0]]


@pytest.mark.parametrize("colour", [2, 4, 6])
def test_deep_colours_are_cut_and_said(colour: int) -> None:
    file = png(16, colour, [b"\x80\xff" * (SAMPLES[colour] - 1) + b"\xff\xff"])
    assert "16-bit colours cut to 8 bits" in kinds(file)
    assert decode(file).max() in (128, 255)


def test_deep_colours_in_other_formats() -> None:
    assert kinds(io.BytesIO(b"P6 1 1 1023\n" + bytes(6))) == ["10-bit colours cut to 8 bits"]
    assert kinds(io.BytesIO(b"P6 1 1 255\n" + bytes(3))) == []
    avif = saved(Image.new("RGB", (16, 16)), "AVIF").getvalue()
    place = avif.index(b"av1C") + 6
    assert kinds(io.BytesIO(avif)) == []
    for flag, bits in ((0x00, 8), (0x40, 10), (0x60, 12)):  # no file of this Pillow's own has more than 8
        assert avif_bits(io.BytesIO(avif[:place] + bytes([flag]) + avif[place + 1 :])) == bits
    with pytest.raises(Unusable, match="16-bit colours of which one is transparent"):
        decode(png(16, 2, [b"\1\2" * 3], chunk(b"tRNS", b"\1\2" * 3)))


def test_palettes_cmyk_and_turned_photos_are_said() -> None:
    red = Image.new("RGB", (4, 2), (255, 0, 0))
    assert kinds(saved(red, "PNG")) == []
    assert kinds(saved(red.quantize(4), "PNG")) == ["palette colours converted to RGB"]
    assert kinds(saved(red.convert("CMYK"), "JPEG")) == ["CMYK converted to RGB, without its colour profile"]
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        file = saved(red, kind, exif=exif)
        assert kinds(file) == ["turned upright, as its EXIF orientation says"], kind
        assert decode(file).shape == (4, 2, 3), kind


def test_the_first_of_several_frames_is_said() -> None:
    frames = [Image.new("L", (3, 3), grey) for grey in (0, 90, 255)]
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        file = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        assert ("the first of several frames was taken", "3 frames") in decode_with_changes(file).changes, kind
        assert decode(file).max() == 0, kind


def test_a_preview_is_not_taken_for_the_photo() -> None:
    for tag in ("tag254", "tag50706"):
        with pytest.raises(Unusable, match="camera raw file, of which only a small preview can be read"):
            decode(tiff(2, 8, b"\x01\x02", **{tag: 1}))


def test_text_and_profiles_beside_the_pixels_do_not_count() -> None:
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    exif = Image.Exif()
    exif[0x0112] = 3
    text = PngInfo()
    text.add_text("workflow", "x" * (2 << 20), zip=True)
    for file in (
        saved(image, "PNG", pnginfo=text, exif=exif),
        saved(image, "PNG", icc_profile=bytes(3 << 20), exif=exif),
    ):
        assert np.array_equal(decode(file), np.asarray(image)[::-1, ::-1])
    whole = saved(image, "PNG", pnginfo=text).getvalue()
    with pytest.raises(Unusable, match="unreadable or truncated"):
        decode(io.BytesIO(whole[:-30]))


def test_a_header_of_too_many_pixels_is_one_sentence() -> None:
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(Unusable, match=r"pixels, at most 50,000,000 in all are decoded: make it smaller"):
        decode(io.BytesIO(bomb))


def test_the_header_announces_the_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    for kind in ("JPEG", "TIFF", "WEBP"):
        path = tmp_path / kind
        Image.new("RGB", (4, 2)).save(path, kind, exif=exif)
        assert header_size(path) == decode(path).shape[:2] == (4, 2), kind
    (tmp_path / "no").write_bytes(b"no")
    assert header_size(tmp_path / "no") is None
