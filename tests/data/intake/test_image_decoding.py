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

from shoal.data.intake.image_decoding import (
    OTHER_TIFF,
    Unusable,
    decode,
    decode_with_changes,
    header_size,
    why_not_read,
)


def saved(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def changes(file: io.BytesIO) -> str:
    return decode_with_changes(file)[1]


def test_a_transparent_ground_becomes_white() -> None:
    drawing = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    drawing.putpixel((1, 0), (10, 20, 30, 255))
    drawing.putpixel((2, 0), (0, 0, 0, 51))  # a fifth of black
    file = saved(drawing, "PNG")
    assert decode(file).tolist() == [[[255] * 3, [10, 20, 30], [204] * 3]]
    assert changes(file) == "converted from RGBA"
    grey = Image.new("LA", (2, 1), (7, 255))
    grey.putpixel((0, 0), (7, 0))
    assert decode(saved(grey, "PNG")).tolist() == [[255, 7]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 8, 7, 1, 2, 3])
    palette.putpixel((1, 0), 1)
    file = saved(palette, "GIF", transparency=1)
    assert decode(file).tolist() == [[[9, 8, 7], [255] * 3]]


def test_one_transparent_grey_becomes_white() -> None:
    file = saved(Image.fromarray(np.array([[3, 4]], np.uint8)), "PNG", transparency=3)
    assert decode(file).tolist() == [[255, 4]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_greys_of_more_than_8_bits_are_refused(dtype: type) -> None:
    file = saved(Image.fromarray(np.array([[0, 1]], dtype)), "TIFF")
    with pytest.raises(Unusable, match="greys of more than 8 bits: scale them to 8 bits"):
        decode(file)


def test_palettes_cmyk_and_turned_photos_are_converted_and_said() -> None:
    red = Image.new("RGB", (4, 2), (255, 0, 0))
    assert changes(saved(red, "PNG")) == ""
    assert changes(saved(red.quantize(4), "PNG")) == "converted from P"
    assert changes(saved(red.convert("CMYK"), "JPEG")) == "converted from CMYK"
    assert decode(saved(red.quantize(4), "PNG")).tolist() == np.asarray(red).tolist()
    bits = saved(Image.new("1", (2, 1), 1), "PNG")
    assert decode(bits).tolist() == [[255, 255]]
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        file = saved(red, kind, exif=exif)
        assert changes(file) == "turned upright", kind
        assert decode(file).shape == (4, 2, 3), kind


def test_the_first_of_several_frames_is_said() -> None:
    frames = [Image.new("L", (3, 3), grey) for grey in (0, 90, 255)]
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        file = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        assert "the first of 3 frames" in changes(file), kind
        assert decode(file).max() == 0, kind


def test_a_preview_is_not_taken_for_the_photo(tmp_path: Path) -> None:
    for name, reason in (("a.nef", OTHER_TIFF), ("a.dng", OTHER_TIFF), ("a.TIF", None)):
        Image.new("L", (2, 2)).save(tmp_path / name, "TIFF")
        assert why_not_read(tmp_path / name) == reason


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
    with pytest.raises(Unusable, match=r"unreadable or truncated \(.*3600000000 pixels"):
        decode(io.BytesIO(bomb))


def test_a_header_that_cannot_be_read_has_no_size(tmp_path: Path) -> None:
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    (tmp_path / "no").write_bytes(b"no")
    assert (header_size(tmp_path / "a.png"), header_size(tmp_path / "no")) == ((2, 4), None)
