"""Plain values with arrays (`engine.wire`) as JSON text, for where nothing but text can travel."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

ARRAY = {"dtype", "shape", "deflated"}
"""The keys of an array's JSON object."""
LARGEST = 1 << 30
"""Bytes of an array, at most."""


def text_of(plain: Mapping[str, Any]) -> str:
    """Plain values with arrays as JSON text; numbers come back to the bit, NaN and infinity included."""

    def array(value: Any) -> dict[str, Any]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} is not a plain value")
        deflated = base64.b64encode(zlib.compress(value.tobytes(), 1)).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "deflated": deflated}

    return json.dumps(plain, default=array)


def plain_of(text: str) -> dict[str, Any]:
    """Plain values with arrays from the text of `text_of`.

    Raises:
        ValueError: it is another text.
    """

    def array(found: dict[str, Any]) -> Any:
        if found.keys() != ARRAY:
            return found
        dtype, inflate = np.dtype(found["dtype"]), zlib.decompressobj()
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of {dtype} is none of numbers")
        data = inflate.decompress(base64.b64decode(found["deflated"], validate=True), LARGEST)
        if not inflate.eof:
            raise ValueError("an array is cut short, or too large")
        return np.frombuffer(bytearray(data), dtype).reshape(found["shape"])

    try:
        plain = json.loads(text, object_hook=array)
    except (zlib.error, TypeError, SyntaxError, OverflowError, RecursionError) as error:
        raise ValueError(f"an array cannot be read: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError("it is no JSON object")
    return plain
