"""The set of a run whose samples lie at sites, as the lead knows it: asked of every site before a run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json
from shoal.data.sets.by_client import OWNER
from shoal.data.sets.elsewhere import MEASURED, SiteSet, clients_of_site, joined_manifest, write_joined
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, read_manifest
from shoal.data.sets.remedy import SITES
from shoal.engine.sites.frames import SiteCall
from shoal.engine.sites.transport import Transport, ask_site
from shoal.engine.store.code_version import shoal_version


def gather_set(name: str, transport: Transport, store: Path) -> Manifest:
    """Ask every site for its set of a name, and write the manifest of all of them together to the store.

    Args:
        name: of the set.
        transport: reaches the sites.
        store: of the lead.

    Raises:
        DataError: the sites' sets differ, or the name is that of a set whose samples are here.
        SiteFailed: a site refuses, or cannot tell. SiteLost: a site did not answer.
    """
    folder = own_folder(store, name)
    here = read_manifest(folder) if (folder / "manifest.json").exists() else None
    if here is not None and SITES not in here.extra:
        raise DataError(f"{name!r} is a set whose samples are here: give the set of the sites another name")
    with ThreadPoolExecutor(max(1, len(transport.sites)), thread_name_prefix="sites") as threads:
        told = list(threads.map(lambda site: ask_for_set(name, transport, site), transport.sites))
    sets = dict(zip(transport.sites, told, strict=True))
    manifest = joined_manifest(name, sets)
    if here is not None and here.digest == manifest.digest and here.extra.get(MEASURED) == manifest.extra.get(MEASURED):
        return here
    sizes = {part: [n for site in sorted(sets) for n in getattr(sets[site], part)] for part in ("train", "test")}
    return write_joined(folder, manifest, sizes)


def ask_for_set(name: str, transport: Transport, site: str) -> SiteSet:
    """Return what a site tells of its set; errors as of `gather_set`."""
    told, _ = ask_site(transport, site, SiteCall("describe", shoal_version().sha256, data=name), {})
    try:
        return record_from_json(SiteSet, told)
    except BadRecord as error:
        raise DataError(f"site {site} does not describe its set: {error}") from None


def samples_at_sites(store: Path) -> dict[str, dict[str, int]]:
    """Return how many samples each site has in each set that was gathered from sites."""
    counts: dict[str, dict[str, int]] = {}
    for path in sorted(own_folder(store, "x").parent.glob("*/manifest.json")):
        about = read_manifest(path.parent)
        for site in about.extra.get(SITES, {}):
            clients = clients_of_site(about, site)
            sizes = sum(np.isin(np.load(path.parent / name), clients).sum() for name in OWNER.values())
            counts.setdefault(site, {})[about.name] = int(sizes)
    return counts
