"""`shoal data`: list, prepare, partition, show and add data sets.

Functions import what they need: `shoal data --help` must not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.console import cell, err, out, say, shoal_command
from shoal.cli.options import Set, with_options
from shoal.core.errors import DataError, ShoalError
from shoal.data.intake.options import AddOptions
from shoal.engine.settings import places

if TYPE_CHECKING:
    from shoal.lifecycle.dvc_tracking import StoredSet

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, add, show, prepare, partition and embed data sets.",
    rich_markup_mode="rich",
)
ENCODER_HELP = (
    "efficientnet-lite0, timm:NAME, torchvision:NAME, either with @WEIGHTS, or file:TORCHSCRIPT; its weights must be "
    "here: nothing is downloaded"
)


@app.command("list", epilog="Example: shoal data list")
def list_sets() -> None:
    """List the built-in data sets and your own, and which of them are prepared."""
    from shoal.cli.data_tables import print_sets

    print_sets()


@app.command("prepare", epilog="Example: shoal data prepare gaussian-clusters10-seed3")
def prepare_command(
    name: Annotated[str, typer.Argument(help="a built-in data set, with its options; `shoal data list` shows them")],
    force: Annotated[bool, typer.Option("--force", help="prepare the set again if it is prepared already")] = False,
) -> None:
    """Verify the raw files of a data set and write its arrays to the store.

    Raw files come from the folder that SHOAL_DATA_MIRROR names; without it they are downloaded.
    """
    from shoal.cli.data_tables import print_manifest
    from shoal.data.sets.prepare import prepare

    print_manifest(prepare(name, places.store(), mirror=places.mirror(), force=force))


@app.command(
    "partition", epilog="Example: shoal data partition mnist --set partition=dirichlet --set partition.beta=0.1"
)
def partition_set(
    name: Annotated[str, typer.Argument(help="a data set, built in or your own; it is prepared if necessary")],
    overrides: Set = None,
) -> None:
    """Divide the training samples of a data set among clients, by the settings `partition`, `data.limit` and `seed`.

    A set of your own that names its clients is divided by them unless partition.kind says otherwise. Writes the table
    (Parquet) and summary.csv.
    """
    from shoal.cli.data_tables import print_partition
    from shoal.data.sets.prepare import prepare
    from shoal.engine.settings.run_settings import load_settings
    from shoal.lifecycle.preparing import prepare_partition

    settings = load_settings(None, [f"data.name={name}", *(overrides or ())])
    prepared = prepare(name, places.store(), mirror=places.mirror(), options=settings.data.options)
    folder, partition = prepare_partition(settings, prepared)
    print_partition(partition, prepared)
    say(f"table: {folder / 'partition.parquet'}")


@app.command("show", epilog="Example: shoal data show mnist")
def show(
    what: Annotated[str, typer.Argument(help="a prepared data set")],
) -> None:
    """Show what a prepared data set holds, and which method fits it."""
    from shoal.cli.data_tables import print_manifest
    from shoal.data.sets.prepare import is_built_in, lost_set, prepared_sets, resolve, store_folder
    from shoal.data.sets.prepared import open_prepared
    from shoal.engine.settings.run_settings import load_settings
    from shoal.lifecycle.preparing import advise

    store = places.store()
    name = resolve(what)[2] if is_built_in(what) else what
    if not (store_folder(store, name) / "manifest.json").exists():
        names = ", ".join(manifest.name for manifest in prepared_sets(store)) or "none"
        hint = f". Run `shoal data prepare {name}`" if is_built_in(what) else ""
        raise DataError(lost_set(what, store) or f"{what!r} is no prepared data set; prepared: {names}{hint}")
    prepared = open_prepared(store_folder(store, name), verify=True)
    print_manifest(prepared)
    # Advice needs no number of clusters: it is left open.
    say(advise(load_settings(None, ["model.clusters=auto", f"data.name={name}"])).reason)
    open_number = "" if prepared.manifest.classes else " --set model.clusters=auto"
    say(f"run: {shoal_command()} run --set data.name={name}{open_number}")


Source = Annotated[
    Path,
    typer.Argument(
        help="a folder with one sub-folder of images or arrays per client, a Parquet or CSV table, or an array of "
        "vectors: .npy, .npz, .parquet with lists, .h5ad"
    ),
]


@app.command("embed", epilog="Example: shoal data embed photos --encoder efficientnet-lite0")
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


def show_tracking(done: StoredSet) -> None:
    """Print what DVC made of a set; end with status 1 where it did not take it."""
    if done.warning:
        say(f"warning: {done.warning}")
        raise typer.Exit(1)
    if done.pointer is not None:
        say(f"tracked by DVC: commit {done.pointer} to git, and `dvc push` the data to your remote")


@app.command("add", epilog="Example: shoal data add photos/ --name clinics --on-odd resize --labels labels.csv")
@with_options(AddOptions)
def add(path: Source, name: Annotated[str, typer.Option(help="name of the data set")], **options: Any) -> None:
    """Add your own data: images in one sub-folder per client, a table with a client column, or vectors in arrays.

    With --window the rows of the table are samples of time series, and each window of a series becomes one sample.
    In a DVC repository the set is tracked as with `dvc add`: commit its .dvc file to git, and `dvc push` the data.
    """
    from shoal.cli.data_tables import print_intake, print_manifest
    from shoal.data.sets.intake_notes import names_file
    from shoal.lifecycle.adding import add_own
    from shoal.serving.data_events import announce_data
    from shoal.tasks.prefect.environment import server_answers

    added = add_own(path, name, **options)
    print_manifest(added.prepared)
    print_intake(out, added.intake, names_file(added.prepared.folder))
    show_tracking(added)
    # The deployments that train on the set start, where a Prefect server answers.
    try:
        if server_answers() and (names := announce_data(name)):
            err.print(f"started on Prefect's server: {', '.join(names)}", highlight=False, markup=False)
    except ShoalError as error:
        told = cell(f"the set is added, but no deployment was started: {error}")
        err.print("[yellow]warning[/]", told, highlight=False)


@app.command("arrived", epilog="Example: shoal data arrived incoming")
def arrived(
    what: Annotated[str, typer.Argument(metavar="FOLDER|SET", help="a folder that a deployment watches, or a set")],
) -> None:
    """Start the deployments that wait for new data in a folder or a set: for hooks of git, DVC or a file transfer.

    PREFECT_API_URL names the server. `shoal serve` looks at watched folders by itself.
    """
    from shoal.serving.data_events import announce_data
    from shoal.tasks.prefect.environment import server_answers

    if not server_answers():
        raise ShoalError(
            "no Prefect server answers: set PREFECT_API_URL to that of `shoal serve`, which prints it, and start it"
        )
    names = announce_data(what)
    if not names:
        raise ShoalError(
            f"no deployment watches the folder or trains on the set {what!r}: see night.watch and data.name"
        )
    say(f"started: {', '.join(names)}")
