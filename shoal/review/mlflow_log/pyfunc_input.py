"""The input of a served model as samples: arrays in their stored form, and images as base64 strings."""

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
from shoal.data.intake.image_decoding import decode
from shoal.data.sets.prepared import DTYPES, DataSpec

COLUMN = "image"
"""The column, or key, with one image a row."""
_MODES = {1: "L", 3: "RGB"}


class InputError(MlflowException):
    """The input cannot be used; MLflow's scoring server answers with status 400 and this message alone."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=INVALID_PARAMETER_VALUE)

    # The scoring server puts all the values that were sent before a message, and thousands of numbers would hide it.
    @property
    def message(self) -> str:
        """The sentence that says what is wrong."""
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


def are_texts(request: Any) -> bool:
    """Return whether a request holds encoded images alone: base64 strings."""
    rows = _rows(request)
    return len(rows) > 0 and all(isinstance(row, str | bytes) for row in rows)


def samples(request: Any, spec: DataSpec) -> np.ndarray:
    """Return the samples of a request.

    Args:
        request: an array (n, *shape) or nested lists of it; base64 strings; a frame, a dictionary or records with a
            column `image` of either; or a frame whose columns are the values of a sample in their stored order.
        spec: of the data that the model was trained on.

    Returns:
        (n, *shape). Encoded images are converted to the set's mode; images of another size are resized, bilinear with
        antialiasing, as `shoal data add --on-odd resize` does.

    Raises:
        InputError: no samples, another shape, values that samples of this kind cannot have, or an unreadable image.
    """
    rows = _rows(request)
    if not len(rows):
        raise InputError(f"no sample was sent: expected {takes(spec)}")
    texts = [isinstance(row, str | bytes) for row in rows]
    if all(texts):
        return np.stack([_image(row, number, spec) for number, row in enumerate(rows)])
    if any(texts):
        raise InputError(f"the request mixes base64 strings and arrays: expected {takes(spec)}")
    return _array(rows, spec)


def _rows(request: Any) -> Any:
    """Return a request sample by sample, without names of columns."""
    if isinstance(request, list) and request and all(isinstance(row, Mapping) for row in request):
        request = _columns(request)
    if isinstance(request, pd.DataFrame | Mapping):
        request = _from_columns(request)
    if isinstance(request, str | bytes):
        return [request]
    if isinstance(request, np.ndarray) and request.dtype.kind in "USO" and isinstance(next(request.flat, None), str):
        # Text may come as an array of any number of axes, one sample each.
        return [str(row) for row in request.reshape(-1)]
    if isinstance(request, list | np.ndarray):
        return request
    return np.atleast_1d(np.asarray(request))


def _columns(records: list[Any]) -> Any:
    """Return records as a dictionary with the column `image`, or as a frame of numbers."""
    if all(COLUMN in row for row in records):
        return {COLUMN: [row[COLUMN] for row in records]}
    try:
        return pd.DataFrame(records)
    except Exception:  # JSON can hold values that no frame takes
        raise InputError(
            f"the records have no column {COLUMN!r}, and not all values are numbers: send either"
        ) from None


def _from_columns(columns: Any) -> Any:
    """Return the samples of a frame or a dictionary: its column `image`, or all of its numbers."""
    if COLUMN in columns:
        column = columns[COLUMN]
        if isinstance(column, str | bytes):
            return [column]
        if not isinstance(column, list | tuple | np.ndarray | pd.Series):
            raise InputError(f"column {COLUMN!r} is a {type(column).__name__}: expected a list of images")
        return list(column)
    if isinstance(columns, pd.DataFrame) and all(map(pd.api.types.is_numeric_dtype, columns.dtypes)):
        return columns.to_numpy()
    named = shown(", ".join(map(str, columns)), 100)
    raise InputError(f"the request has the columns {named}: expected a column {COLUMN!r}, or numbers alone")


def _array(rows: Any, spec: DataSpec) -> np.ndarray:
    try:
        array = np.asarray([np.asarray(row, dtype=np.float64) for row in rows])
    except OverflowError:
        raise InputError(f"the request holds a number that is too large for a sample: expected {takes(spec)}") from None
    except (ValueError, TypeError):
        raise InputError(f"the samples have different shapes, or do not hold numbers: expected {takes(spec)}") from None
    if array.size != len(array) * int(np.prod(spec.shape)):
        raise InputError(f"the array has shape {array.shape}: expected {takes(spec)}")
    if not np.isfinite(array).all():
        raise InputError(f"the array holds values that are not finite: expected {takes(spec)}")
    if DTYPES[spec.kind] != "float32" and (array != np.round(array)).any():
        raise InputError(f"the array holds values that are not whole numbers: expected {takes(spec)}")
    if spec.kind == "image" and (array.min() < 0 or array.max() > 255):
        raise InputError(f"the array holds values from {array.min():g} to {array.max():g}: expected 0 to 255")
    return array.reshape(len(array), *spec.shape).astype(DTYPES[spec.kind])


def _image(text: str | bytes, number: int, spec: DataSpec) -> np.ndarray:
    """Return one encoded image as uint8 (channels, height, width)."""
    if spec.kind != "image" or spec.shape[0] not in _MODES:
        raise InputError(f"the request holds text: expected {takes(spec)}")
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if text.startswith("data:"):
        text = text.partition(",")[2]  # a web page's data address
    try:
        # Lines of 76 characters, as `base64` writes them, are allowed.
        raw = base64.b64decode("".join(text.split()), validate=True)
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
    if array.ndim == 2:
        return array[None]
    return array.transpose(2, 0, 1)


def _size(spec: DataSpec) -> str:
    return f"{spec.shape[1]}x{spec.shape[2]}"
