"""Names in settings that become part of a path."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from shoal.core.names import name_fault


def check_path_part(name: str) -> str:
    """Return a name that can be part of a path, and refuse any other.

    Raises:
        PydanticCustomError: says why it cannot.
    """
    fault = name_fault(name)
    if fault:
        raise PydanticCustomError("name", "{fault}", {"fault": f"it {fault}"})
    return name
