"""A site on the network: it answers the lead's server with what its agent makes of each request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from shoal.engine.sites.agent import SiteAgent
from shoal.engine.sites.own_rules import OwnRules
from shoal.engine.sites.study import keys_of, serving
from shoal.engine.store.code_version import shoal_version


def serve_site(folder: Path, store: Path, runs: Path, rules: OwnRules, connected: Callable[[bool], None]) -> None:
    """Answer the lead until the process ends.

    Args:
        folder: of the site.
        store: of its data.
        runs: folder of its runs.
        rules: its own.
        connected: told when the lead's server is reached, and when it is not any more.

    Raises:
        ShoalError: the site has not joined a study, or another process serves it.
    """
    from shoal.engine.sites.cells import SiteCell

    keys = keys_of(folder)
    kit = json.loads((keys / "fed_client.json").read_text())
    server = kit["servers"][0]
    name = kit["client"]["fqsn"]
    about = {"code": shoal_version().sha256, "torch": str(torch.__version__)}
    agent = SiteAgent(name, store, runs, rules)
    with serving(folder, f"site {name}"):
        SiteCell(name, server["service"]["target"], server["identity"], keys, about).serve(agent.answer, connected)
