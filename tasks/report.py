"""One self-contained HTML page per run: result, figures, clients, settings, lineage, events of note."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml
from jinja2 import Environment, PackageLoader, select_autoescape

from tasks.codec import write_atomic
from tasks.result import run_result
from tasks.runfolder import RunFolder

QUIET = ("started", "round_started", "round_finished", "client_finished")


def write_report(run: RunFolder) -> Path:
    """Write report.html from the run folder; figures are embedded."""
    clients = run.table("clients")
    if len(clients):
        clients = clients[clients["round"] == clients["round"].max()]
    environment = Environment(loader=PackageLoader("tasks"), autoescape=select_autoescape())
    page = environment.get_template("report.html.j2").render(
        name=run.name,
        result=run_result(run),
        clients=clients.round(4).to_dict("records"),
        settings=yaml.safe_dump(run.settings().plain(), sort_keys=False),
        lineage=yaml.safe_dump(run.lineage(), sort_keys=False),
        events=[e for e in run.events() if e["event"] not in QUIET],
        figures=[
            (path.stem, base64.b64encode(path.read_bytes()).decode()) for path in sorted(run.figures.glob("*.png"))
        ],
    )
    path = run.path / "report.html"
    write_atomic(path, page.encode(), sync=False)
    return path
