"""Methods by name."""

from __future__ import annotations

from methods.base import Method
from methods.fedcc import FedCC
from methods.fedpnp import FedPNP

METHODS: dict[str, type[Method]] = {method.name: method for method in (FedPNP, FedCC)}
"""Every method that `method.name` may say. A new one is added to this tuple."""
