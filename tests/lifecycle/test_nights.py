"""A night refuses settings under which it could not judge or name its model."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.engine.settings.run_settings import make_settings
from shoal.lifecycle.nights import check_settings
from shoal.lifecycle.taking_in import NightError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workers": {"runner": "sites"}, "privacy": {"clip": 1.0, "noise": 1.0}}, "noise covers all that sites tell"),
        ({"tracking": {"model": False}}, "a night names its champion"),
        ({"method": {"name": "fedavg"}}, "method fedavg learns from labels"),
    ],
)
def test_settings_without_a_judge_or_a_name_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NightError, match=said):
        check_settings(make_settings({"data": {"name": "digits"}, "method": {"name": "fedkmeans"}, **changes}))
