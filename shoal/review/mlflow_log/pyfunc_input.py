"""The input of a served model as samples: arrays in their stored form, and images as base64 strings."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from shoal.core.errors import DataError
from shoal.data.intake.image_decoding import decode
from shoal.data.intake.images import MODES, in_form
from shoal.data.sets.prepared import DTYPES, DataSpec
from shoal.review.results.served_method import CLIENT

COLUMN = "image"
"""The column, or key, with one image a row."""


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
    if spec.kind != "image" or spec.shape[0] not in MODES:
        return arrays
    colour = "grey" if spec.shape[0] == 1 else "colour"
    size = f"{spec.shape[1]}x{spec.shape[2]}"
    return f"{arrays}, or a column {COLUMN!r} of base64-encoded image files, read as {colour} {size}"


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
    if not rows:
        raise InputError(f"no sample was sent: expected {takes(spec)}")
    if isinstance(rows[0], str | bytes):
        return np.stack([_image(row, number, spec) for number, row in enumerate(rows)])
    return _array(rows, spec)


def without_clients(request: Any) -> tuple[Any, np.ndarray | None]:
    """Return a request without its column `client`, and the names in that column, empty where one is missing."""
    table = _table(request)
    if not isinstance(table, pd.DataFrame) or CLIENT not in table:
        return request, None
    return table.drop(columns=CLIENT), np.array([str(name) for name in table[CLIENT].fillna("")], dtype=str)


def _table(request: Any) -> Any:
    """Return records, or columns by name, as a frame; anything else as it is."""
    try:
        if isinstance(request, Mapping):
            return pd.DataFrame({name: list(column) for name, column in request.items()})
        if isinstance(request, list) and request and isinstance(request[0], Mapping):
            return pd.DataFrame(request)
    except (ValueError, TypeError, AttributeError):
        raise InputError("the request holds columns of several lengths, or text that is not valid Unicode") from None
    return request


def _rows(request: Any) -> list[Any]:
    """Return a request sample by sample, without names of columns."""
    request = _table(request)
    if isinstance(request, pd.DataFrame):
        if COLUMN in request:
            return list(request[COLUMN])
        if not all(map(pd.api.types.is_numeric_dtype, request.dtypes)):
            raise InputError(f"the request has neither a column {COLUMN!r} nor columns of numbers alone")
        request = request.to_numpy()
    if isinstance(request, np.ndarray) and request.dtype.kind in "OUS":
        request = request.ravel()  # one image each, whatever the number of axes
    try:
        return list(request)
    except TypeError:
        return [request]


def _array(rows: list[Any], spec: DataSpec) -> np.ndarray:
    try:
        array = np.asarray([np.asarray(row, dtype=np.float64) for row in rows])
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"the samples are not numbers, or not all of one shape: expected {takes(spec)}") from None
    if array.size != len(array) * int(np.prod(spec.shape)):
        raise InputError(f"the array has shape {array.shape}: expected {takes(spec)}")
    whole = np.issubdtype(DTYPES[spec.kind], np.integer)
    with np.errstate(all="ignore"):
        converted = array.astype(DTYPES[spec.kind])
    if not np.isfinite(converted).all() or (whole and (converted != array).any()):
        raise InputError(f"the array holds values that {DTYPES[spec.kind]} cannot hold: expected {takes(spec)}")
    return converted.reshape(len(array), *spec.shape)


def _image(text: Any, number: int, spec: DataSpec) -> np.ndarray:
    """Return one encoded image as uint8 (channels, height, width)."""
    if spec.kind != "image" or spec.shape[0] not in MODES or not isinstance(text, str):
        raise InputError(f"the request holds text, or text beside numbers: expected {takes(spec)}")
    try:
        # Without what stands before the comma of a web page's data address, and without ends of lines.
        raw = base64.b64decode("".join(text.rpartition(",")[2].split()), validate=True)
        pixels = decode(io.BytesIO(raw))
    except ValueError:
        raise InputError(f"image {number} is not base64: expected {takes(spec)}") from None
    except DataError as error:
        raise InputError(f"image {number} cannot be read: {str(error)[:200]}") from None
    return in_form(pixels, spec.shape)
