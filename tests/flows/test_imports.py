"""What a flow imports before it does anything: people wait for it at each run."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_flow_starts_without_scipy_and_scikit_learn() -> None:
    """They take a second, and only searches and evaluations need them."""
    code = "import sys, shoal.flows.pipeline; print([name for name in ('scipy', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_a_report_without_labels_is_written_without_scipy_s_optimisers() -> None:
    """They take a third of a second, and only labels are matched with clusters."""
    code = "import sys, shoal.review.pages.report; print('scipy.optimize' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_command_rarely_looks_for_unreachable_objects_while_it_imports() -> None:
    command = "from shoal.cli.main import app; app(['run', '--help'], standalone_mode=False)"
    code = f"import gc; {command}; print(gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "50000"
