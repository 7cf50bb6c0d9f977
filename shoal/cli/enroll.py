"""`shoal model enroll`: a new client's place in the cluster tree of a CFL run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shoal.cli.console import out, say, table_of
from shoal.cli.options import AnyRun, Json, OutFile


def enroll(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="a run of cfl: its folder, its name, or latest, the last finished one")
    ],
    client: Annotated[
        str, typer.Option(help="data of the new client: a prepared set, or PARTITION_FOLDER:K for its client K")
    ],
    validation: Annotated[
        float, typer.Option(min=0, max=0.9, help="share of a prepared set that is held out to judge each node's model")
    ] = 0.2,
    limit: Annotated[int | None, typer.Option(min=2, help="largest number of samples of a prepared set to use")] = None,
    out_file: OutFile = None,
    any_run: AnyRun = False,
    as_json: Json = False,
) -> None:
    """Find the cluster of a new client in a CFL run, and write its model."""
    from shoal.core.records import record_to_json
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.enroll import enroll as find_place
    from shoal.review.served.enroll import new_client

    run = RunFolder.find(name, places.runs(), unfinished=any_run)
    data = new_client(run, client, places.store(), places.mirror(), validation=validation, limit=limit)
    place = find_place(run, data, out_file)
    if as_json:
        print(json.dumps(record_to_json(place)))
        return
    rows = []
    for step in place.path:
        similarities = ", ".join(f"{node}: {value:+.3f}" for node, value in step.similarities.items())
        rows.append((step.node, similarities, step.accuracy))
    out.print(table_of(("node", "nearest update of each branch", "validation accuracy"), rows))
    say(f"cluster {place.cluster} with clients {', '.join(map(str, place.clients))}")
    say(f"its model: {place.model}")
