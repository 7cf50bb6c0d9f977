"""Users without a name."""

from __future__ import annotations

import getpass
import os
import pwd

import pytest

from shoal.engine.store.user_name import name_user, user_name
from shoal.review.served import promotion
from shoal.serving.serve import exposure_warnings


def test_a_user_without_a_name_has_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers with any user; MLflow, DVC and Prefect ask for the name, and get it too."""

    def nameless(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.setenv(name, "")
    assert user_name() == promotion.user() == str(os.geteuid())
    assert f" as {os.geteuid()};" in exposure_warnings("0.0.0.0", 1, None)[0]
    name_user()
    assert getpass.getuser() == str(os.geteuid())
    monkeypatch.setenv("LOGNAME", "anna")
    name_user()
    assert getpass.getuser() == "anna"
