"""`shoal enroll`: a new client's place in the cluster tree of a CFL run."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shoal.core.records import record_to_json
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.served.enroll import enroll as find_place
from shoal.review.served.enroll import new_client


def enroll_command(
    out: Console,
    name: str,
    client: str,
    give: str,
    validation: float,
    limit: int | None,
    out_file: Path | None,
    as_json: bool,
    round: int | None = None,
) -> None:
    """Find the place, write the model, and show the way there."""
    run_folder = RunFolder.find(name, places.runs())
    data = new_client(run_folder, client, places.store(), places.mirror(), validation=validation, limit=limit)
    found = find_place(run_folder, data, give, out_file, round)
    if as_json:
        print(json.dumps(record_to_json(found)))
        return
    table = Table("node", "nearest update of each branch", "validation accuracy")
    for step in found.path:
        shown = ", ".join(f"{node}: {value:+.3f}" for node, value in step.similarities.items())
        score = "" if step.accuracy is None else f"{step.accuracy:.3f}"
        table.add_row(str(step.node), shown, score)
    out.print(table)
    if round is not None:
        out.print(f"by the state after round {found.round}", highlight=False)
    out.print(f"cluster {found.cluster} with clients {', '.join(map(str, found.clients))}", highlight=False)
    out.print(f"model of node {found.given}: {found.model}", highlight=False, soft_wrap=True)
