"""What a flow imports before it does anything: people wait for it at each run."""

from __future__ import annotations

import subprocess
import sys


def test_a_flow_starts_without_scipy_and_scikit_learn() -> None:
    """They take a second, and only searches and evaluations need them."""
    code = "import sys, shoal.flows.pipeline; print([name for name in ('scipy', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
