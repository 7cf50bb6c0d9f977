"""`shoal data embed`: the images of a set as vectors of a pretrained encoder, in a set of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import say, shoal_command

if TYPE_CHECKING:
    from shoal.lifecycle.embedding import Embedded
ENCODER_HELP = (
    "efficientnet-lite0, timm:NAME, torchvision:NAME, either with @WEIGHTS, or file:TORCHSCRIPT; its weights must be "
    "here: nothing is downloaded"
)


def embed(
    name: Annotated[str, typer.Argument(metavar="SET", help="a set of images, built in or your own")],
    encoder: Annotated[str, typer.Option(help=ENCODER_HELP)],
    target: Annotated[str | None, typer.Option("--name", help="name of the new set (default: SET-ENCODER)")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing data set of that name")] = False,
    stage: Annotated[
        bool, typer.Option("--stage", help="add a stage to dvc.yaml: `dvc repro` embeds again if images have changed")
    ] = False,
) -> None:
    """Make vectors of the images of a data set with a pretrained encoder, client by client.

    The vectors are a data set of their own, with the same samples, clients, labels and test part. A run on it shows and
    predicts images.
    """
    from shoal.lifecycle.embedding import embed as embed_images

    show_embedded(embed_images(name, encoder, target, force=force, stage=stage))


def show_embedded(done: Embedded) -> None:
    """Print what was made, and how to go on."""
    name = done.prepared.manifest.name
    say(done.message)
    say(f"folder: {done.prepared.folder}")
    if done.warning:
        say(f"warning: {done.warning}")
        raise typer.Exit(1)
    if done.pointer is not None:
        say(f"tracked by DVC: commit {done.pointer} to git, and `dvc push` the data to your remote")
    clusters = "" if done.prepared.manifest.classes else " --set model.clusters=auto"
    say(f"next: {shoal_command()} run --set data.name={name}{clusters}")
