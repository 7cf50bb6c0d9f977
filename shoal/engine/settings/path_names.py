"""Settings that are names and become a part of a path."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from shoal.core.names import name_fault


def check_path_part(name: str) -> str:
    """Refuse a setting that is to be a part of a path, and cannot.

    Raises:
        PydanticCustomError: says why.
    """
    fault = name_fault(name)
    if fault:
        raise PydanticCustomError("name", "{fault}", {"fault": f"it {fault}"})
    return name
