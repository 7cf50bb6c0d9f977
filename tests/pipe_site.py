"""A site of a test: a process of its own, with its own home, that answers over a pipe."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from shoal.engine.messages.masks import secret_key
from shoal.engine.settings import places
from shoal.engine.sites.agent import SiteAgent
from shoal.engine.sites.frames import SiteCall
from shoal.engine.sites.own_rules import OwnRules
from shoal.lifecycle.site_nights import take_in_at_site


def keep_within(home: Path) -> None:
    """Have this process fail where it opens, lists or links a file of another home, which lies beside its own."""

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.link", "os.rename"):
            for path in arguments[:2]:
                if isinstance(path, str) and path.startswith(f"{home.parent}/") and not path.startswith(str(home)):
                    raise PermissionError(f"{path} belongs to another site")

    sys.addaudithook(watch)


def night_rules() -> Any:
    """Rules that refuse what a file `refuse` in the home names, and nothing else."""

    def refusal(call: SiteCall, settings: object, samples: object) -> str | None:
        refused = places.home() / "refuse"
        return f"no {call.do} at night" if refused.exists() and refused.read_text() == call.do else None

    allowed = {
        "asks": False,
        "least_group": 1,
        "tells_columns": True,
        "waits": lambda *_: None,
        "mask_key": secret_key(places.home(), 0).hex(),
    }
    return mock.Mock(spec=OwnRules, refusal=refusal, **allowed)


def serve(pipe: Connection, name: str, home: Path) -> None:
    """Answer until the lead is gone, by the site's policy if it has one."""
    os.environ.update({"HOME": str(home), "SHOAL_HOME": str(home), "TMPDIR": str(home)})
    os.chdir(home)
    keep_within(home)

    rules = OwnRules(places.site(), take_in_at_site) if (home / "site" / "policy.yaml").exists() else night_rules()
    agent = SiteAgent(name, home / "data" / "store", home / "runs", rules)
    while True:
        try:
            content = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(agent.answer(content))
