"""`shoal serve`: Prefect and MLflow on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.console import out, say

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal serve --port 4200 --mlflow-port 5000")
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the Prefect server")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="port of the MLflow page")] = 5000,
    host: Annotated[
        str,
        typer.Option(help="address to listen on; with any but 127.0.0.1 other hosts can connect: see docs/servers.md"),
    ] = "127.0.0.1",
    reset: Annotated[
        bool, typer.Option("--reset-schedules", help="replace schedules and parameters by those of prefect.yaml")
    ] = False,
) -> None:
    """Start Prefect, a worker, the deployments of prefect.yaml and MLflow, until Ctrl-C."""
    from shoal.serving.serve import serve as start

    try:
        start(port, mlflow_port, out, reset=reset, host=host)
    except KeyboardInterrupt:
        say(
            "all of it has ended; a run that was under way goes on with its deployment's next run, or by "
            "`shoal run --resume RUN` (`shoal runs` shows it)"
        )
        raise
