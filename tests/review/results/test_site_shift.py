"""One site's images are darker: the clusters become the site, the run says so, and site means take it away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.methods.scores.clustering import accuracy
from shoal.review.pages.report import write_report
from shoal.review.results.clusters import cluster_facts, keep_clusters, read_clusters
from tests.added_sets import add_set
from tests.runs import straight

Make = Callable[..., Any]
CLIENTS = ("east", "north", "south", "west")
DARK = "south"
KINDS = 3
OWN = {
    "data": {"name": "sites", "limit": None},
    "partition": {"kind": "by_column", "column": "client", "clients": 0},
    "rounds": 12,
}


def write_sites(folder: Path, shift: int) -> None:
    """Four sites with the same three kinds of image; those of one site are darker by `shift`."""
    rng = np.random.default_rng(0)
    patterns = rng.choice((-40, 40), (KINDS, 12, 12))
    for client in CLIENTS:
        (folder / client).mkdir(parents=True)
        for number in range(24):
            kind = number % KINDS
            pixels = 150 + patterns[kind] + rng.normal(0, 20, (12, 12))
            if client == DARK:
                pixels = pixels - shift
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / client / f"{kind}-{number}.png")


def clustered(home: Path, small: Make, shift: int, method: dict[str, Any]) -> tuple[RunFolder, float]:
    """A run on the drawn sites, and the ACC of its clusters."""
    if not (home / f"sites{shift}").exists():
        write_sites(home / f"sites{shift}", shift)
        add_set(home / f"sites{shift}", "sites", places.store(), force=True)
    settings = small(**OWN, method={"name": "fedkmeans", **method}, model={"encoder": "pixels", "clusters": KINDS})
    worker = Worker()
    run = straight(settings, worker.handle)
    assert keep_clusters(run, worker.handle)
    table = read_clusters(run)
    assert table is not None
    kind = table["file"].str.split("/").str[-1].str[0].astype(int)
    return run, accuracy(kind.to_numpy(), table["cluster"].to_numpy())


@pytest.mark.long
def test_a_darker_site_is_found_and_site_means_take_it_away(home: Path, small: Make) -> None:
    unshifted, whole = clustered(home, small, 0, {})
    facts = cluster_facts(unshifted)
    assert whole > 0.95
    assert facts is not None
    assert facts.sites is not None
    assert facts.sites.nmi <= facts.sites.by_chance
    assert not facts.sites.site_clusters

    shifted, harmed = clustered(home, small, 100, {"sites": "ignore"})
    facts = cluster_facts(shifted)
    assert harmed < 0.8, "the shift does harm"
    assert facts is not None
    assert facts.sites is not None
    assert facts.verdict is not None
    dark = CLIENTS.index(DARK)
    assert facts.sites.nmi > 3 * facts.sites.by_chance
    assert facts.sites.nmi > facts.sites.by_chance
    assert facts.sites.closed_sites == (dark,)
    assert {facts.sites.sites[k] for k in facts.sites.site_clusters} == {dark}
    assert facts.verdict.word != "good"
    page = write_report(shifted).read_text()
    assert f"Nearly all samples of client {DARK} are in clusters of its own" in page

    for sites in ("estimate", "centre"):
        corrected, restored = clustered(home, small, 100, {"sites": sites})
        facts = cluster_facts(corrected)
        assert restored == pytest.approx(whole, abs=0.03)
        assert facts is not None
        assert facts.verdict is not None
        assert facts.verdict.word == "good", "neighbours lose the means of their sites, too"
        assert facts.sites is not None
        assert not facts.sites.site_clusters
        told = "Sites differ by offsets" in write_report(corrected).read_text()
        assert told == (sites == "estimate")
