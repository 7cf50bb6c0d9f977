"""`shoal model`: the models of runs in MLflow, and their champions."""

from __future__ import annotations

import typer

from shoal.cli.enroll import enroll
from shoal.cli.log import log
from shoal.cli.promote import promote
from shoal.cli.rollback import rollback

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Promote, roll back and log models, and enroll a client in one."
)
app.command(epilog='Example: shoal model promote 20260131-120000_fedpnp_mnist_1a2b3c4d --why "fewer mixed clusters"')(
    promote
)
app.command(epilog='Example: shoal model rollback shoal-fedpnp-mnist --why "cluster 4 lost its lesions"')(rollback)
app.command(epilog="Example: MLFLOW_TRACKING_URI=https://mlflow.example.org shoal model log --all")(log)
app.command(epilog="Example: shoal model enroll latest --client mnist-late --out model.safetensors")(enroll)
