"""Sets whose clients lie elsewhere: a manifest and the sizes of all clients; a site has the files of its own clients.

    data/store/own/lungs/                        where the run is led
      manifest.json                              its digest is over the digests of the sites' sets
      column_client.npy  test_client.npy         the client of each sample, by number: how many each client has
    RUN/data/                                    at a site: the same, and
      clients/0001/...                           the files of its clients, which are links to those of its own set

Clients are numbered site by site in the order of the sites' names, and samples client by client. So the numbers depend
on no order in which sites answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.digests import file_digest
from shoal.core.errors import DataError, shown
from shoal.data.sets.by_client import FOLDER, OWNER
from shoal.data.sets.prepared import Manifest, PreparedSet, new_set, write_manifest
from shoal.data.sets.remedy import EMBEDDED, SITES
from shoal.data.sets.writing import link

COLUMNS = "features"
CODING = "coding"
SHARED = (COLUMNS, CODING, "columns", "windows", "on_odd", EMBEDDED)
"""Entries of a manifest's `extra` that all sites must share, since models and reports read them."""
MEASURED = "measured"
"""Entry of the manifest of a set at sites: the mean of the sites' `spread`, and whether all hold `counts`."""
OF_ONE_SITE = {CODING: "fills", EMBEDDED: "digest"}
"""What in such an entry is of one site's samples alone, and stays there."""


@dataclass(frozen=True)
class SiteSet:
    """What a site tells of its set; neither a sample nor the name of a file or client is in it.

    Attributes:
        kind, shape, classes, class_names, digest: as of `Manifest`.
        train, test: numbers of samples of each of its clients.
        shared: entries of `extra`, as far as they are in `SHARED`.
        spread, counts: of its own columns, as of `shoal.methods.auto.Facts`; None where samples are no columns.
    """

    kind: str
    shape: tuple[int, ...]
    classes: int | None
    class_names: tuple[str, ...]
    digest: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)
    spread: float | None = None
    counts: bool | None = None


def site_set(prepared: PreparedSet) -> SiteSet:
    """Return what a site tells of its own set, which is stored by client."""
    about = prepared.manifest
    clients = len(about.extra["clients"])
    sizes = {part: np.bincount(prepared.owners(part), minlength=clients).tolist() for part in OWNER}
    shared = {name: about.extra[name] for name in SHARED if name in about.extra}
    for name, private in OF_ONE_SITE.items():
        if name in shared:
            shared[name] = {**shared[name], private: type(shared[name].get(private, ""))()}
    facts = (about.kind, about.shape, about.classes, about.class_names, about.digest)
    return SiteSet(*facts, tuple(sizes["train"]), tuple(sizes["test"]), shared)


def joined_manifest(name: str, sets: Mapping[str, SiteSet]) -> Manifest:
    """Return the manifest of a set that lies at sites, without digests of files.

    Args:
        name: of the set.
        sets: what each site tells of its own, by the site's name.

    Raises:
        DataError: sites differ; names the site and the column.
    """
    names = sorted(sets)
    first = sets[names[0]]
    for other in names[1:]:
        for what, here, there in compared(first, sets[other]):
            if here != there:
                raise DataError(
                    f"the sites' sets {name!r} differ: {what} is {shown(there)} at site {other}, and {shown(here)} at "
                    f"site {names[0]}"
                )
    told = {site: sets[site] for site in names}
    digests = {site: about.digest for site, about in told.items()}
    counts = {site: sum(about.train) for site, about in told.items()}
    extra = {
        **first.shared,
        "clients": [client for site, about in told.items() for client in client_names(site, len(about.train))],
        SITES: {site: {"digest": about.digest, "clients": len(about.train)} for site, about in told.items()},
    }
    spreads = [about.spread for about in told.values() if about.spread is not None]
    if len(spreads) == len(told):
        spread = float(np.average(spreads, weights=list(counts.values())))
        extra[MEASURED] = {"spread": spread, "counts": all(about.counts for about in told.values())}
    return Manifest(
        name=name,
        kind=first.kind,  # type: ignore[arg-type]
        shape=first.shape,
        classes=first.classes,
        train=sum(counts.values()),
        test=sum(sum(about.test) for about in told.values()),
        source=f"sites {', '.join(names)}",
        licence="of each site",
        class_names=first.class_names,
        digest=hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest(),
        extra=extra,
    )


def client_names(site: str, clients: int) -> list[str]:
    """Return the names of a site's clients: that of the site, with a number where there are several."""
    if clients == 1:
        return [site]
    return [f"{site} {number}" for number in range(1, clients + 1)]


def compared(first: SiteSet, other: SiteSet) -> Iterator[tuple[str, Any, Any]]:
    """Yield what two sites must share: its name, and its value at each of them."""
    for what in ("kind", "shape", "classes"):
        yield what, getattr(first, what), getattr(other, what)
    columns = [about.shared.get(COLUMNS, ()) for about in (first, other)]
    for what, here, there in (("class", first.class_names, other.class_names), ("column", *columns)):
        yield f"the number of {what} names", len(here), len(there)
        for number, pair in enumerate(zip(here, there, strict=False), 1):
            yield f"{what} {number}", *pair
    for name in SHARED:
        yield name, first.shared.get(name), other.shared.get(name)


def clients_of_site(manifest: Manifest, site: str) -> range:
    """Return the numbers of a site's clients in a set that lies at sites.

    Raises:
        DataError: the set does not lie at this site.
    """
    first = 0
    for name, about in sorted(manifest.extra[SITES].items()):
        if name == site:
            return range(first, first + about["clients"])
        first += about["clients"]
    raise DataError(f"the set {manifest.name!r} does not lie at site {shown(site)}")


def has_clients_of(manifest: Manifest, site: str) -> bool:
    """Return whether the samples of a site are here, by the files of a set that lies at sites."""
    numbers = clients_of_site(manifest, site)
    return any(name.startswith(f"{FOLDER}/") and int(name.split("/")[1]) in numbers for name in manifest.files)


def write_joined(
    folder: Path, manifest: Manifest, sizes: Mapping[str, list[int]], own: tuple[str, PreparedSet] | None = None
) -> Manifest:
    """Write a set that lies at sites; at a site with the files of its own clients.

    Args:
        folder: the final place; an older version there is replaced.
        manifest: as `joined_manifest` returns it.
        sizes: number of samples of each client, by part (train and test).
        own: the name of this site, and its set; None where the run is led.

    Returns:
        The manifest with the digests of the files that are here.

    Raises:
        DataError: the site's set is another one than the manifest names, or the disk is full.
    """
    files = {}
    with new_set(folder) as scratch:
        for part, name in OWNER.items():
            np.save(scratch / name, np.repeat(np.arange(len(sizes[part])), sizes[part]), allow_pickle=False)
            files[name] = file_digest(scratch / name)
        if own is not None:
            files |= link_clients(scratch, manifest, *own)
        complete = replace(manifest, files=files)
        write_manifest(complete, scratch)
    return complete


def link_clients(scratch: Path, manifest: Manifest, site: str, prepared: PreparedSet) -> dict[str, str]:
    """Link a site's clients into a set that lies at sites; return the digest of each file by its path there."""
    numbers = clients_of_site(manifest, site)
    expected = manifest.extra[SITES][site]
    if prepared.manifest.digest != expected["digest"] or len(prepared.manifest.extra["clients"]) != len(numbers):
        raise DataError(f"the set {manifest.name!r} has changed at site {site} since the run was started")
    files = {}
    for name, sha256 in prepared.manifest.files.items():
        top, _, rest = name.partition("/")
        if top != FOLDER or not rest.endswith(".npy"):
            continue  # names of files stay in the site's own set
        client, _, file = rest.partition("/")
        target = f"{FOLDER}/{numbers[int(client)]:04d}/{file}"
        (scratch / target).parent.mkdir(parents=True, exist_ok=True)
        link(prepared.folder / name, scratch / target)
        files[target] = sha256
    return files
