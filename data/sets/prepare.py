"""Preparation of data sets: from raw files to arrays and a manifest in the store.

    data/store/prepared/mnist   what can be prepared again: the built-in sets
    data/store/own/photos       the user's own sets, which only the user may remove

The name of a set with options spells those that differ from the defaults, so that the name identifies the set:
`gaussian-clusters10-seed3`, `ag-news-length32`.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.core.durable import new_version, restore
from shoal.core.errors import DataError
from shoal.data.sets.built_in import SETS, DataSet, LoadedSet, Request
from shoal.data.sets.prepared import Manifest, PreparedSet, open_prepared, read_manifest, write_prepared
from shoal.data.sets.remedy import OWN, remedy
from shoal.data.sets.writing import link, writing

PLACES = ("prepared", OWN)
"""The folders of the store that hold sets; a copy of an own set that `dvc repro` made gives way to the set."""
_OPTION = "-([a-z]+)([0-9]{1,18})"


def store_folder(store: Path, name: str) -> Path:
    """Return the folder of the prepared set `name` in a store."""
    own = own_folder(store, name)
    if _plain(name):
        restore(own)
        if (own / "manifest.json").exists():
            return own
    return prepared_folder(store, name)


def prepared_folder(store: Path, name: str) -> Path:
    """Return the folder of a set that can be prepared again."""
    return store / "prepared" / name


def own_folder(store: Path, name: str) -> Path:
    """Return the folder of a set of the user's own; DVC's pointer to it is the file NAME.dvc beside it."""
    return store / OWN / name


def own_pointer(store: Path, name: str) -> Path:
    """Return the small file, kept in git, by which DVC knows a set of the user's own."""
    return store / OWN / f"{name}.dvc"


def own_sets(store: Path) -> list[Manifest]:
    """Return the manifests of the user's own sets in a store, by name."""
    return [m for m in prepared_sets(store) if _built_in(m.name) is None]


def prepared_sets(store: Path) -> list[Manifest]:
    """Return the manifests of all sets in a store, by name; other folders are ignored."""
    manifests = {}
    for place in PLACES:
        for old in (store / place).glob(".*.old"):
            restore(old.with_name(old.stem.removeprefix(".")))
        for path in (store / place).glob("[!.]*/manifest.json"):
            with contextlib.suppress(DataError):
                manifests[path.parent.name] = read_manifest(path.parent)
    return [manifest for _, manifest in sorted(manifests.items())]


def damaged_sets(store: Path, *, verify: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged set of a store, and a sentence that says what to do.

    Args:
        store: the store.
        verify: read every byte; else only manifests and the shapes of arrays.
    """
    for place in PLACES:
        for folder in sorted((store / place).glob("[!.]*/")):
            try:
                open_prepared(folder, verify=verify)
            except DataError as error:
                yield folder.name, str(error)


def stage_own(store: Path, name: str) -> Path:
    """Put a set of the user's own among the prepared ones, where the stages of dvc.yaml look for every set.

    The files are hard links where the file system supports them, so that the copy takes no space.

    Returns:
        The folder, which appears whole or not at all.

    Raises:
        DataError: there is no such set.
    """
    source = prepare(name, store).folder
    target = prepared_folder(store, name)
    if source == target:
        return target
    with writing(target), new_version(target) as scratch:
        shutil.copytree(source, scratch, copy_function=link, dirs_exist_ok=True)
    return target


def resolve(name: str, options: Mapping[str, int] | None = None) -> tuple[DataSet, dict[str, int], str]:
    """Return the built-in set of a name, all its options, and its full name.

    Args:
        name: a set's name, with or without options.
        options: options by name; they override those in the name.

    Raises:
        DataError: there is no such set, or it does not have an option.

    >>> resolve("gaussian-clusters10", {"seed": 3})[2]
    'gaussian-clusters10-seed3'
    """
    parsed = _built_in(name)
    if parsed is None:
        raise _unknown(name, [])
    data_set, given = parsed
    given |= dict(options or {})
    for option, value in given.items():
        if option not in data_set.options:
            have = ", ".join(data_set.options) or "none"
            raise DataError(f"data set {data_set.name!r} has no option {option[:60]!r}; its options: {have}")
        floor = 0 if option in ("seed", "test") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < floor:
            raise DataError(f"option {option!r} of {data_set.name!r} is {value!r}, expected a whole number >= {floor}")
    complete = {**data_set.options, **given}
    changed = [
        f"{option}{complete[option]}" for option, default in data_set.options.items() if complete[option] != default
    ]
    return data_set, complete, "-".join([data_set.name, *changed])


def prepare(
    name: str,
    store: Path,
    *,
    mirror: Path | None = None,
    force: bool = False,
    options: Mapping[str, int] | None = None,
) -> PreparedSet:
    """Prepare a data set in the store, or open it if it is prepared.

    Args:
        name: a built-in set, or one of the user's own in this store.
        store: folder with `raw`, `prepared` and `partitions`.
        mirror: folder of raw files (see data/sets/files.py); without one they are downloaded to `store/raw`.
        force: prepare it again even if it exists; a set of the user's own is checked against its digest instead.
        options: the set's options (see `SETS[name].options`), such as clusters and seed of a synthetic set.

    Raises:
        DataError: the set or an option is unknown, raw files are missing or wrong, or the prepared set is broken.
    """
    if _built_in(name) is None:
        if not _plain(name) or not (store_folder(store, name) / "manifest.json").exists():
            if _plain(name) and (lost := lost_set(name, store)):
                raise DataError(lost)
            raise _unknown(name, [m.name for m in own_sets(store)])
        if options:
            raise DataError(f"{name!r} is a set of your own: it has no options")
        return open_prepared(store_folder(store, name), verify=force)
    data_set, complete, full_name = resolve(name, options)
    folder = prepared_folder(store, full_name)
    manifest = folder / "manifest.json"
    if force or not manifest.exists():
        with writing(folder):
            if force or not manifest.exists():  # another process may have prepared it meanwhile
                loaded = data_set.load(Request(mirror, store / "raw", complete))
                arrays = {f"{part}_{name}": xy[name == "y"] for part, xy in loaded.parts.items() for name in "xy"}
                write_prepared(folder, _manifest(full_name, data_set, complete, loaded), arrays)
    return open_prepared(folder)


def lost_set(name: str, store: Path) -> str | None:
    """Return a sentence about a set of the user's own whose files are missing; None where there is no trace of it.

    Args:
        name: of the set.
        store: the store.
    """
    folder = own_folder(store, name)
    pointer = own_pointer(store, name)
    if folder.is_dir() and any(folder.iterdir()):
        return f"no prepared data set in {folder}: {remedy(folder)}"
    if pointer.exists():
        return f"{name!r} is a set of your own that DVC keeps, and its files are not here: run `dvc pull {pointer}`"
    return None


def _manifest(name: str, data_set: DataSet, options: dict[str, int], loaded: LoadedSet) -> Manifest:
    """Return the manifest of a built-in set."""
    x, _ = loaded.parts["train"]
    return Manifest(
        name=name,
        kind=data_set.kind,
        shape=x.shape[1:],
        classes=len(loaded.class_names) or None,
        train=len(x),
        test=len(loaded.parts["test"][0]) if "test" in loaded.parts else 0,
        source=loaded.source,
        licence=data_set.licence,
        class_names=loaded.class_names,
        subset=loaded.subset,
        extra={**loaded.extra, **({"options": options} if options else {})},
    )


def _built_in(name: str) -> tuple[DataSet, dict[str, int]] | None:
    """Return the built-in set and the options of a name; None for another name."""
    for known, data_set in SETS.items():
        options = name.removeprefix(known)
        if name.startswith(known) and re.fullmatch(f"({_OPTION})*", options):
            return data_set, {option: int(value) for option, value in re.findall(_OPTION, options)}
    return None


def kind_of(name: str) -> str | None:
    """Return the kind of data in a built-in set by its name; None for another name.

    >>> kind_of("mnist-shrink2"), kind_of("gaussian"), kind_of("holiday-photos")
    ('image', 'vector', None)
    """
    built_in = _built_in(name)
    return built_in[0].kind if built_in else None


def is_built_in(name: str) -> bool:
    """Return whether a name is that of a built-in set, with or without options."""
    return _built_in(name) is not None


def has_clients(name: str, store: Path) -> bool:
    """Return whether a set of the user's own names the clients of its samples.

    False for a set that is not in the store: its preparation reports what is missing.
    """
    return not is_built_in(name) and (store_folder(store, name) / "column_client.npy").is_file()


def _plain(name: str) -> bool:
    return Path(name).name == name and not name.startswith(".")


def _unknown(name: str, own: list[str]) -> DataError:
    close = difflib.get_close_matches(name.lower(), [*SETS, *own], n=2)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    yours = f"; your own: {', '.join(own)}" if own else ""
    said = repr(name) if name.isprintable() and len(name) <= 100 else f"{name[:60]!a}..."
    return DataError(f"there is no data set {said}{hint} Built in: {', '.join(SETS)}{yours}")
