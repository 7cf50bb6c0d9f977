"""Names in settings that become part of a path."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from shoal.core.names import name_fault


def check_path_part(name: str) -> str:
    """Return a name unchanged if it can be part of a path.

    Raises:
        PydanticCustomError: it cannot; the error says why.
    """
    fault = name_fault(name)
    if fault:
        raise PydanticCustomError("name", "{fault}", {"fault": f"it {fault}"})
    return name
