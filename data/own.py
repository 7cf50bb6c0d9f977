"""The user's own data: a folder with one sub-folder of images per client, or a table with a client column.

Both become sets like the built-in ones, in a place of the store where nothing else writes. The client of each training
sample is kept as the column `client` (numbers into the manifest's `extra["clients"]`), for the scheme `by_column`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

from shoal.core.errors import DataError
from shoal.data.choices import OnBad, OnOdd
from shoal.data.folder_files import is_system
from shoal.data.images import (
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
from shoal.data.intake import Intake
from shoal.data.label_file import read_labels
from shoal.data.own_images import check_colours, client_files, new_pictures, note_adapted, note_left_out, wanted_size
from shoal.data.own_rows import read_rows
from shoal.data.own_store import Batch, check_spelling, exclusive, known_files, store_batch
from shoal.data.prepare import is_built_in, own_pointer, own_sets, prepare, store_folder
from shoal.data.prepared import Prepared
from shoal.data.spelling import choose_spellings, note_spellings


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
        name: what the set is called: small letters, digits, - and _.
        store: the store.
        size: height and width of all images; None: the most common size.
        on_bad: refuse the folder, or skip files, where a file is unreadable, truncated, not finite, or of no client.
        on_odd: refuse, skip or resize images of another size.
        labels: CSV with the columns file (relative to `folder`) and label, one row per image.
        test: share of each client's images that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add what is new to the set of this name. Its samples keep their order, numbers and part; images that it
            has are passed over.
        intake: notes to which is added what was taken, adapted and left out.

    Returns:
        Images uint8 (n, 1 or 3, height, width): grey if all are grey. What was skipped is in `extra["skipped"]`, what
        was resized in `extra["resized"]`, first frames and grey images among coloured ones in `extra["adapted"]`.

    Raises:
        DataError: no folder, no client, a client without images, refused files (all of them listed), labels that do not
            fit, a name that is taken, or images that cannot be appended to the set.
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
    intake: Intake | None = None,
) -> Batch:
    """The images of a folder that holds one sub-folder per client, as they would be stored; nothing is written.

    Args:
        folder, size, on_bad, on_odd, labels, licence: as of `add_folder`.
        onto: the set that they are to be appended to: they must fit it, and what it has is passed over.
        only: paths below the folder; all other files, and files of no client, are passed over unread.
        intake: notes to which is added what was taken, adapted and left out.

    Raises:
        shoal.data.own_images.NothingNew: the set has all of the images already.
        DataError: as `add_folder`.
    """
    _check_choice("on_bad", on_bad, get_args(OnBad))
    _check_choice("on_odd", on_odd, get_args(OnOdd))
    notes = Intake() if intake is None else intake
    size = wanted_size(size, onto)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    clients = [client.name for client in client_folders(folder)]
    if not clients:
        raise DataError(f"{folder} has no sub-folders: expected one sub-folder of images per client")
    files = client_files(folder, clients, onto, only, notes)
    pictures, bad = read_images(files.paths(), folder, size, resize=on_odd == "resize")
    bad += files.rejected
    refuse_or_skip(bad, on_bad, folder, "skip them with on_bad='skip' (--on-bad skip), or mend them")
    if not pictures:
        raise DataError(f"{folder} has no readable image:\n{listing(bad)}")
    target = size or common_size(pictures)
    odd = [] if on_odd == "resize" else odd_sized(pictures, target)
    refuse_or_skip(odd, on_odd, folder, "use on_odd='resize' or 'skip' (--on-odd), or give another size")
    note_left_out([*bad, *odd], notes)
    left_out = {each.path for each in odd}
    pictures = [picture for picture in pictures if picture.path not in left_out]
    names = list(files.by_client)
    _refuse_bare(names, pictures, [*bad, *odd])
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
        passed_over = {each.path for each in (*bad, *odd)} | set(everything)
        passed_over |= {name for group in notes.left_out.values() for name in group}
        if only is not None and onto is not None:
            passed_over |= known_files(onto).keys()
        label = read_labels(labels, [picture.path for picture in pictures], passed_over, onto, notes)
    return _batch(folder, pictures, label, names, target, onto, licence, there, [*bad, *odd], notes)


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
    """The pictures as they are stored, with the notes of what they were made from."""
    channels = channels_of(pictures) if onto is None else onto.manifest.shape[0]
    lists = {"skipped": skipped, "resized": resized(pictures, size), "adapted": adapted(pictures, channels)}
    notes.take("files", len(pictures))
    note_adapted([*lists["resized"], *lists["adapted"]], notes)
    owner = [_client(picture) for picture in pictures]
    count = Counter(owner)
    known = onto.manifest.extra["clients"] if onto else ()
    spelled = choose_spellings({client: count[client] for client in clients}, known)
    note_spellings(spelled, "clients", notes)
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
    """The sub-folders of a folder that are clients, sorted; links, hidden ones and those of the system are none."""
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
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
    intake: Intake | None = None,
) -> Prepared:
    """Prepare a Parquet or CSV table: a client column, an optional label column, and numbers.

    Args:
        path: .parquet, .csv or .csv.gz; CSV with a header row.
        name: what the set is called: small letters, digits, - and _.
        store: the store.
        client_column: says whose a row is.
        label_column: the label of a row; None without labels.
        features: the columns that are features; None: all that are measurements (`shoal.data.columns`).
        test: share of each client's rows that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add the rows to the set of this name. Its rows keep their order, numbers and part.
        intake: notes to which is added what was taken, adapted and left out.

    Returns:
        Vectors float32 (n, features), in the order of the table's columns.

    Raises:
        DataError: unreadable file, missing column, a feature that is not a finite number (names columns and rows), or a
            name that is taken, or rows that cannot be appended to the set.
    """
    onto = check_name(name, store, force, append)
    batch = read_rows(
        path,
        onto,
        client_column=client_column,
        label_column=label_column,
        features=features,
        licence=licence,
        intake=intake,
    )
    return store_batch(name, store, batch, test, seed, onto)


def check_name(name: str, store: Path, force: bool, append: bool) -> Prepared | None:
    """The set to append to, each byte of which is that of its manifest; None for a new one."""
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
        return prepare(name, store, force=True)  # else damage would get a digest of its own
    if there and not force:
        raise DataError(
            f"there is a data set {name!r} already: choose another name, add what is new with --append, or replace it "
            "with --force"
        )
    return None


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DataError(f"{option} is {value!r}, expected one of {', '.join(allowed)}")


def refuse_or_skip(rejected: list[Rejected], action: str, folder: Path, advice: str) -> None:
    """Refuse files where the action is to refuse them.

    Raises:
        DataError: lists all of them.
    """
    if rejected and action == "refuse":
        count = "1 image" if len(rejected) == 1 else f"{len(rejected)} images"
        raise DataError(f"{count} of {folder} cannot be used; {advice}:\n{listing(rejected)}")
