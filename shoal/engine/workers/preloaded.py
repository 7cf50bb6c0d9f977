"""What workers need to be imported, for the fork server: importing this imports it.

Python would look for unreachable objects again and again while 600,000 objects are made that stay, which takes a fifth
of the time, and once more in each worker, which would copy the memory that workers share.
"""

from __future__ import annotations

import gc
from importlib import import_module

NEEDED = ("torch._dynamo", "shoal.engine.workers.worker")
"""Modules; torch's optimisers need the first."""

gc.disable()
try:
    for name in NEEDED:
        import_module(name)
finally:
    gc.enable()
gc.freeze()
