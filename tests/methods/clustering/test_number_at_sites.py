"""The search for the number of clusters over sites finds what that over all samples in one place does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.methods.clustering.cluster_number import find_cluster_number
from shoal.methods.clustering.number_at_sites import NumberSearch
from shoal.methods.contract.declared import fault
from shoal.methods.contract.message import Message, Tensors
from tests.conftest import one_quick
from tests.methods.clustering.test_cluster_number import QUICK, cluster_samples


@pytest.mark.parametrize("least", one_quick([5, 1]))
def test_sites_find_the_number_of_one_place_in_two_requests(least: int) -> None:
    x = cluster_samples(4)
    search = NumberSearch(replace(QUICK, least_points=least), 0)

    asked = []

    def ask(step: str, told: Tensors) -> list[Tensors]:
        asked.append(step)
        answers = [search.answer(step, told, x.some(rows)) for rows in (x.client < 2, x.client >= 2)]
        form = search.form(step, told, x.some(x.client < 0))
        assert [fault(Message(answer), form) for answer in answers] == [None, None]
        assert all(
            bool(((counts == 0) | (counts >= least)).all()) for a in answers if (counts := a.get("counts")) is not None
        )
        return answers

    found, samples = search.find(ask)
    here = find_cluster_number(x, search.search, 0)
    assert (found.clusters, samples) == (here.clusters, len(x.x)) == (4, 240)
    for one, other in zip(found.tried, here.tried, strict=True):
        assert one.stability == pytest.approx(other.stability, abs=0.1)
        assert one.silhouette == pytest.approx(other.silhouette, abs=0.1)
    assert asked == ["centres", "counts"]
