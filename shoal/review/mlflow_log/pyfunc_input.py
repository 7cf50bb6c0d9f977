"""What is sent to a served model, made into samples: arrays as they are stored, and images as base64 strings."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from PIL import Image

from shoal.core.errors import DataError, shown
from shoal.data.image_decoding import decode
from shoal.data.prepared import DTYPES, DataSpec

COLUMN = "image"
"""The column, or key, that holds one image a row."""
_MODES = {1: "L", 3: "RGB"}


class InputError(MlflowException):
    """What was sent cannot be used; answered by MLflow's scoring server with status 400 and this message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=INVALID_PARAMETER_VALUE)

    # The scoring server puts all the values that were sent before a message; thousands of numbers would hide it.
    @property
    def message(self) -> str:
        """What is wrong."""
        return str(self.args[0])

    @message.setter
    def message(self, value: str) -> None:
        pass


def takes(spec: DataSpec) -> str:
    """Return what a model of this data takes, in words."""
    arrays = f"arrays {DTYPES[spec.kind]} (n, {', '.join(map(str, spec.shape))})"
    if spec.kind != "image" or spec.shape[0] not in _MODES:
        return arrays
    colour = "grey" if spec.shape[0] == 1 else "colour"
    return f"{arrays}, or a column {COLUMN!r} of base64-encoded image files, read as {colour} {_size(spec)}"


def samples(given: Any, spec: DataSpec) -> np.ndarray:
    """The samples in what was sent.

    Args:
        given: an array (n, *shape) or nested lists of it; base64 strings; a frame, a dictionary or records with a
            column `image` of either; or a frame whose columns are the values of a sample in their stored order.
        spec: of the data the model was trained on.

    Returns:
        (n, *shape). Encoded images are converted to the set's mode and, where their size is another, resized to its
        size, bilinear with antialiasing, as `shoal data add --on-odd resize` does.

    Raises:
        InputError: no samples, another shape, values that samples of this kind cannot have, or an unreadable image.
    """
    rows = _rows(given)
    if not len(rows):
        raise InputError(f"no sample was sent: expected {takes(spec)}")
    texts = [isinstance(row, str | bytes) for row in rows]
    if all(texts):
        return np.stack([_image(row, number, spec) for number, row in enumerate(rows)])
    if any(texts):
        raise InputError(f"base64 strings and arrays in one request: expected {takes(spec)}")
    return _array(rows, spec)


def _rows(given: Any) -> Any:
    """What was sent, sample by sample, without names of columns."""
    if isinstance(given, list) and given and all(isinstance(row, Mapping) for row in given):
        if all(COLUMN in row for row in given):
            given = {COLUMN: [row[COLUMN] for row in given]}
        else:
            try:
                given = pd.DataFrame(given)
            except Exception:  # text that is none, and whatever else JSON can hold
                raise InputError(f"no column {COLUMN!r} in the records, and no numbers in all of them") from None
    if isinstance(given, pd.DataFrame | Mapping):
        if COLUMN in given:
            column = given[COLUMN]
            if not isinstance(column, str | bytes | list | tuple | np.ndarray | pd.Series):
                raise InputError(f"column {COLUMN!r} is a {type(column).__name__}: expected a list of images")
            given = [column] if isinstance(column, str | bytes) else list(column)
        elif isinstance(given, pd.DataFrame) and all(map(pd.api.types.is_numeric_dtype, given.dtypes)):
            given = given.to_numpy()
        else:
            raise InputError(f"no column {COLUMN!r} in what was sent, but {shown(', '.join(map(str, given)), 100)}")
    if isinstance(given, str | bytes):
        return [given]
    # Text may come as an array of any number of axes, one sample each.
    if isinstance(given, np.ndarray) and given.dtype.kind in "USO" and given.size and isinstance(given.flat[0], str):
        return [str(row) for row in given.reshape(-1)]
    return given if isinstance(given, list | np.ndarray) else np.atleast_1d(np.asarray(given))


def _array(rows: Any, spec: DataSpec) -> np.ndarray:
    try:
        array = np.asarray([np.asarray(row, dtype=np.float64) for row in rows])
    except OverflowError:
        raise InputError(f"given a number too large to be one of a sample: expected {takes(spec)}") from None
    except (ValueError, TypeError):
        raise InputError(f"samples of unequal shape, or not of numbers: expected {takes(spec)}") from None
    if array.size != len(array) * int(np.prod(spec.shape)):
        raise InputError(f"given an array of shape {array.shape}: expected {takes(spec)}")
    if not np.isfinite(array).all():
        raise InputError("given values that are not finite")
    if spec.kind != "vector" and (array != np.round(array)).any():
        raise InputError(f"given values that are not whole numbers: expected {takes(spec)}")
    if spec.kind == "image" and (array.min() < 0 or array.max() > 255):
        raise InputError(f"given values from {array.min():g} to {array.max():g}: expected 0 to 255")
    return array.reshape(len(array), *spec.shape).astype(DTYPES[spec.kind])


def _image(text: str | bytes, number: int, spec: DataSpec) -> np.ndarray:
    """Return one encoded image as uint8 (channels, height, width)."""
    if spec.kind != "image" or spec.shape[0] not in _MODES:
        raise InputError(f"given text: expected {takes(spec)}")
    encoded = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]  # a web page's data address
    try:
        # Lines of 76 characters, as `base64` writes them, are allowed.
        raw = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"image {number} is not base64: expected {takes(spec)}") from None
    try:
        pixels = decode(io.BytesIO(raw))
    except DataError as error:
        raise InputError(f"image {number} cannot be read: {str(error)[:200]}") from None
    image = Image.fromarray(pixels).convert(_MODES[spec.shape[0]])
    height, width = spec.shape[1:]
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _size(spec: DataSpec) -> str:
    return f"{spec.shape[1]}x{spec.shape[2]}"
