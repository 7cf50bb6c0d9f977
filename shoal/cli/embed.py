"""`shoal data embed`: the images of a set as vectors of a pretrained encoder, in a set of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import say, shoal_command

if TYPE_CHECKING:
    from shoal.lifecycle.dvc_tracking import Stored
ENCODER_HELP = (
    "efficientnet-lite0, timm:NAME, timm:NAME@WEIGHTS, or file:TORCHSCRIPT; its weights must be here: nothing is "
    "downloaded"
)


def embed(
    name: Annotated[str, typer.Argument(metavar="SET", help="a set of images, built in or your own")],
    encoder: Annotated[str, typer.Option(help=ENCODER_HELP)],
    target: Annotated[str | None, typer.Option("--name", help="name of the new set (default: SET-ENCODER)")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing data set of that name")] = False,
) -> None:
    """Make vectors of the images of a data set with a pretrained encoder, client by client.

    The vectors are a data set of their own, with the same samples, clients, labels and test part. A run on it shows and
    predicts images.
    """
    from shoal.lifecycle.embedding import embed as embed_images

    done = embed_images(name, encoder, target, force=force)
    say(done.message)
    say(f"folder: {done.prepared.folder}")
    show_tracking(done)
    clusters = "" if done.prepared.manifest.classes else " --set model.clusters=auto"
    say(f"next: {shoal_command()} run --set data.name={done.prepared.manifest.name}{clusters}")


def show_tracking(done: Stored) -> None:
    """Print what DVC made of a set; end with status 1 where it did not take it."""
    if done.warning:
        say(f"warning: {done.warning}")
        raise typer.Exit(1)
    if done.pointer is not None:
        say(f"tracked by DVC: commit {done.pointer} to git, and `dvc push` the data to your remote")
