"""The user's own data: a folder with one sub-folder of images per client, or a table with a client column.

Both become sets like the built-in ones, in a folder of the store where nothing else writes. The column `client` holds
the client of each training sample (numbers into the manifest's `extra["clients"]`), for the scheme `by_column`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import get_args

from shoal.core.errors import DataError
from shoal.core.records import record_from_json
from shoal.data.intake.choices import Missing, OnBad, OnOdd
from shoal.data.intake.columns import MAX_CATEGORIES
from shoal.data.intake.folder_files import is_system
from shoal.data.intake.images import (
    Picture,
    Rejected,
    adapted,
    channels_of,
    common_size,
    listing,
    odd_sized,
    read_images,
    resized,
    stack,
)
from shoal.data.intake.label_file import read_labels
from shoal.data.intake.names import one_spelling_each
from shoal.data.intake.own_images import (
    ClientFiles,
    check_colours,
    client_files,
    new_pictures,
    note_adapted,
    note_left_out,
    wanted_size,
)
from shoal.data.intake.own_rows import read_rows
from shoal.data.intake.own_store import Batch, check_spelling, exclusive, known_files, store_batch
from shoal.data.intake.own_vectors import Owners, read_vectors
from shoal.data.intake.own_windows import read_windows
from shoal.data.intake.table_options import TableOptions
from shoal.data.intake.windows import WINDOWS, WindowOptions, WindowRule, window_rule
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepare import is_built_in, own_pointer, own_sets, prepare, store_folder
from shoal.data.sets.prepared import Prepared, read_manifest
from shoal.data.sets.remedy import EMBEDDED


@exclusive
def add_folder(
    folder: Path,
    name: str,
    store: Path,
    *,
    size: tuple[int, int] | None = None,
    on_bad: OnBad = "refuse",
    on_odd: OnOdd = "refuse",
    labels: Path | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
    intake: Intake | None = None,
) -> Prepared:
    """Prepare a folder that holds one sub-folder of images per client.

    Args:
        folder: its sub-folders are the clients; images may lie deeper below them.
        name: of the set: small letters, digits, - and _.
        store: the store.
        size: height and width of all images; None: the most common size.
        on_bad: refuse the folder, or skip files, where a file is unreadable, truncated, not finite, or of no client.
        on_odd: refuse, skip or resize images of another size.
        labels: CSV with the columns file (relative to `folder`) and label, one row per image.
        test: share of each client's images that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add new images to the set of this name. Its samples keep their order, numbers and part; images that it
            has are ignored.
        intake: notes of what is taken, adapted and left out.

    Returns:
        Images uint8 (n, 1 or 3, height, width): grey if all are grey. `extra["skipped"]` lists skipped images,
        `extra["resized"]` resized ones, `extra["adapted"]` first frames and grey images among coloured ones.

    Raises:
        DataError: there is no folder or no client, a client has no image, files are refused (all of them are listed),
            labels do not fit, the name is taken, or images cannot be appended to the set.
    """
    onto = check_name(name, store, force, append)
    batch = read_folder(
        folder, onto, size=size, on_bad=on_bad, on_odd=on_odd, labels=labels, licence=licence, intake=intake
    )
    return store_batch(name, store, batch, test, seed, onto)


def read_folder(
    folder: Path,
    onto: Prepared | None = None,
    *,
    size: tuple[int, int] | None = None,
    on_bad: OnBad = "refuse",
    on_odd: OnOdd = "refuse",
    labels: Path | None = None,
    licence: str = "not stated",
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    intake: Intake | None = None,
) -> Batch:
    """Read the images of a folder with one sub-folder per client, as they would be stored; write nothing.

    Args:
        folder, size, on_bad, on_odd, labels, licence: see `add_folder`.
        onto: the set to append to: the images must fit it, and those that it has are ignored.
        only: paths below the folder; all other files, and files of no client, are not read.
        without: paths below the folder that the caller leaves out, and notes.
        intake: notes of what is taken, adapted and left out.

    Raises:
        shoal.data.intake.own_images.NothingNew: the set has all of the images already.
        DataError: see `add_folder`.
    """
    _check_choice("on_bad", on_bad, get_args(OnBad))
    _check_choice("on_odd", on_odd, get_args(OnOdd))
    notes = intake or Intake()
    size = wanted_size(size, onto)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    clients = [client.name for client in client_folders(folder)]
    if not clients:
        raise DataError(f"{folder} has no sub-folders: put the images of each client into a folder of its own there")
    files = client_files(folder, clients, onto, only, notes, without)
    pictures, skipped, target = _usable(files, folder, size, on_bad, on_odd)
    note_left_out(skipped, notes)
    names = list(files.by_client)
    _refuse_bare(names, pictures, skipped)
    everything = [picture.path for picture in pictures]
    there = ""
    if onto is not None:
        check_colours(pictures, onto)
        pictures = new_pictures(pictures, target, onto)
        before = len(everything) - len(pictures)
        there = f" ({before} were there already)"
        notes.know("files", before)
    label: list[str] | None = None
    if labels is not None:
        passed_over = {each.path for each in skipped} | set(everything)
        passed_over |= {name for group in notes.left_out.values() for name in group}
        if only is not None and onto is not None:
            passed_over |= known_files(onto).keys()
        wanted = [picture.path for picture in pictures]
        # Some files of a folder that grows: its labels may be ahead of its files, and stay when a file is removed.
        label = read_labels(labels, wanted, passed_over, onto, notes, may_be_ahead=only is not None)
    return _batch(folder, pictures, label, names, target, onto, licence, there, skipped, notes)


def _usable(
    files: ClientFiles, folder: Path, size: tuple[int, int] | None, on_bad: OnBad, on_odd: OnOdd
) -> tuple[list[Picture], list[Rejected], tuple[int, int]]:
    """Decode the images; return those to store, those to skip with reasons, and the size of all."""
    pictures, bad = read_images(files.paths(), folder, size, resize=on_odd == "resize")
    bad += files.rejected
    target = size or (common_size(pictures) if pictures else (0, 0))
    odd = [] if on_odd == "resize" else odd_sized(pictures, target)
    advice = {
        "skip them with on_bad='skip' (--on-bad skip), or mend them": bad if on_bad == "refuse" else [],
        "use on_odd='resize' or 'skip' (--on-odd), or give another size (--size)": odd if on_odd == "refuse" else [],
    }
    refuse(advice, folder)
    if not pictures:
        raise DataError(f"{folder} has no readable image:\n{listing(bad)}")
    left_out = {each.path for each in odd}
    return [picture for picture in pictures if picture.path not in left_out], [*bad, *odd], target


def _refuse_bare(clients: list[str], pictures: list[Picture], skipped: list[Rejected]) -> None:
    taken = {_client(picture) for picture in pictures}
    bare = [client for client in clients if client not in taken]
    if bare:
        raise DataError(f"every image of these clients was skipped: {', '.join(bare)}\n{listing(skipped)}")


def _batch(
    folder: Path,
    pictures: list[Picture],
    label: list[str] | None,
    clients: list[str],
    size: tuple[int, int],
    onto: Prepared | None,
    licence: str,
    there: str,
    skipped: list[Rejected],
    notes: Intake,
) -> Batch:
    """Return the pictures as they are stored, with notes of their conversions."""
    channels = channels_of(pictures) if onto is None else onto.manifest.shape[0]
    lists = {"skipped": skipped, "resized": resized(pictures, size), "adapted": adapted(pictures, channels)}
    notes.take("files", len(pictures))
    note_adapted([*lists["resized"], *lists["adapted"]], notes)
    owner = [_client(picture) for picture in pictures]
    count = Counter(owner)
    known = onto.manifest.extra["clients"] if onto else ()
    spelled = one_spelling_each({client: count[client] for client in clients}, "clients", folder, known, notes)
    owner = [spelled[client] for client in owner]
    clients = list(dict.fromkeys(spelled[client] for client in clients))
    return Batch(
        "image",
        stack(pictures, size, channels),
        label,
        owner,
        clients,
        [picture.path for picture in pictures],
        source=f"folder {folder.name}, {len(pictures)} images of {len(set(owner))} clients{there}",
        licence=licence,
        extra={key: [[each.path, each.reason] for each in found] for key, found in lists.items()},
        intake=notes,
    )


def client_folders(folder: Path) -> list[Path]:
    """Return the sub-folders of a folder that are clients, sorted; links, hidden and system folders are not."""
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and not is_system(path.name)
    )


def _client(picture: Picture) -> str:
    return picture.path.split("/")[0]


@exclusive
def add_table(
    path: Path,
    name: str,
    store: Path,
    *,
    client_column: str = "client",
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    missing: Missing | None = None,
    max_categories: int = MAX_CATEGORIES,
    windows: WindowOptions | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
    intake: Intake | None = None,
) -> Prepared:
    """Prepare a Parquet or CSV table: a client column, an optional label column, numbers, and texts of few values.

    Args:
        path: .parquet, .csv or .csv.gz; CSV with a header row.
        name: of the set: small letters, digits, - and _.
        store: the store.
        client_column, label_column, features, missing, max_categories, windows, licence: see
            `shoal.data.intake.table_options.TableOptions`.
        test: share of each client's rows that becomes the test split.
        seed: seed for drawing the test split.
        force: replace a set of this name.
        append: add the rows to the set of this name. Its rows keep their order, numbers and part.
        intake: notes of what is taken, adapted and left out.

    Returns:
        Vectors float32 (n, features), in the order of the table's columns. `extra["coding"]` says how columns became
            features, `extra["columns"]` whether they are measurements or one embedding. With windows series float32
            (n, channels, length); `extra["windows"]` says how they were cut.

    Raises:
        DataError: the file is unreadable, a column is missing, a feature is not a finite number (columns and rows are
            named), values are missing, the name is taken, or rows cannot be appended to the set.
    """
    if missing is not None:
        _check_choice("missing", missing, get_args(Missing))
    onto = check_name(name, store, force, append)
    options = TableOptions(
        client_column, label_column, features, missing, max_categories, windows or WindowOptions(), licence
    )
    return store_batch(name, store, _read_table(path, onto, options, test, intake), test, seed, onto)


def _read_table(path: Path, onto: Prepared | None, options: TableOptions, test: float, intake: Intake | None) -> Batch:
    """Return the rows of a table, or its windows where the user asks for them or the set holds some."""
    if not options.windows.given and (onto is None or onto.manifest.kind != "series"):
        return read_rows(path, onto, options, intake)
    if options.missing is not None:
        raise DataError("--missing is for rows that are vectors: in windows a missing value is a gap")
    batch = read_windows(path, onto, options, intake)
    refuse_overlap(batch, onto, test)
    return batch


@exclusive
def add_vectors(
    path: Path,
    name: str,
    store: Path,
    *,
    clients: Path | None = None,
    client_column: str = "client",
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
    intake: Intake | None = None,
) -> Prepared:
    """Prepare vectors that lie in arrays: embeddings, cells, spectra.

    Args:
        path: .npy, .npz, .parquet with a column of lists, .h5 or .h5ad; or a folder with one sub-folder of such files,
            or one such file, for each client.
        name: of the set: small letters, digits, - and _.
        store: the store.
        clients: a table or .npy that says whose each vector of a file is, a row a vector.
        client_column: the client of a row in that table, else the array or column of the file.
        label_column: the label of a row, likewise; None: `label` of .npz and .h5, else no labels.
        features: the name of the array, data set or column that holds the vectors; None: the only one, or x.
        test: share of each client's vectors that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add the vectors to the set of this name. Its samples keep their order, numbers and part.
        intake: notes of what is taken, adapted and left out.

    Returns:
        Vectors float32 (n, d), in the order of the files.

    Raises:
        DataError: a file is unreadable or no array of vectors, clients are missing, a value is not a finite number
            (file and row are named), the name is taken, or vectors cannot be appended to the set.
    """
    onto = check_name(name, store, force, append)
    if onto is not None and onto.manifest.kind != "vector":
        raise DataError(f"{name!r} holds {onto.manifest.kind}s: vectors cannot be appended to it")
    batch = read_vectors(
        path,
        store,
        onto,
        owners=Owners(clients, client_column, label_column),
        features=features,
        licence=licence,
        intake=intake,
    )
    return store_batch(name, store, batch, test, seed, onto)


def refuse_overlap(batch: Batch, onto: Prepared | None, test: float) -> None:
    """Refuse a test part of windows that share samples with windows of the training part.

    Raises:
        DataError: says how the windows overlap.
    """
    rule = record_from_json(WindowRule, batch.extra[WINDOWS]) if onto is None else window_rule(onto.manifest)
    if test and rule.stride < rule.length:
        raise DataError(
            f"windows of {rule.length} samples begin every {rule.stride}, so that those of the test part would share "
            "samples with those to train on: give --step as long as --window, or leave --test out"
        )


def check_name(name: str, store: Path, force: bool, append: bool) -> Prepared | None:
    """Return the set to append to, checked byte by byte against its manifest; None for a new set."""
    check_spelling(name)
    if is_built_in(name):
        raise DataError(f"{name!r} is the name of a built-in data set: choose another name")
    there = store_folder(store, name).exists() or own_pointer(store, name).exists()
    if append:
        if force:
            raise DataError("--append adds to a data set and --force replaces it: give one of them")
        if not there:
            have = ", ".join(m.name for m in own_sets(store)) or "none"
            raise DataError(f"there is no data set {name!r} to append to; your own: {have}. Add it without --append")
        if origin := read_manifest(store_folder(store, name)).extra.get(EMBEDDED):
            raise DataError(
                f"{name!r} was made of the images in {origin['images']!r}: append to these, then run "
                f"`shoal embed {origin['images']} --encoder {origin['encoder']['name']} --name {name}`"
            )
        return prepare(name, store, force=True)  # checked, so that damage does not get a digest
    if there and not force:
        raise DataError(
            f"there is a data set {name!r} already: choose another name, add new samples with --append, or replace it "
            "with --force"
        )
    return None


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DataError(f"{option} is {value!r}, expected one of {', '.join(allowed)}")


SHOWN = 10
"""So many refused files are named, so that what to do stays on the screen."""


def refuse(rejected: Mapping[str, list[Rejected]], folder: Path, what: str = "image") -> None:
    """Raise one error about all rejected files, if there are any.

    Args:
        rejected: files, by what can be done about them.
        folder: that they lie in.
        what: one of them is called.

    Raises:
        DataError: names the first rejected files of each kind.
    """
    complaints = [
        f"{len(files)} {what}{'s' * (len(files) > 1)} of {folder} cannot be used; {advice}:\n{listing(files, SHOWN)}"
        for advice, files in rejected.items()
        if files
    ]
    if complaints:
        raise DataError("\n".join(complaints))
