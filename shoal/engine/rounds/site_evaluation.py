"""The step of the loop that evaluates a server state at the sites: each judges its own samples and sends sums.

The counts of samples by cluster and label add up, so that the scores of clusters are those of all samples together;
where a site withholds small counts, ACC and purity have bounds in their place.
Every other number of samples is a mean over sites by their numbers of samples, under a name with `BY_SITE`: it may
compare no samples of different sites, and is another measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.messages.wire import Answer, Call, Evaluate, EvaluateAnswer, Failure, Recalibrate, StateRequest
from shoal.engine.store.memory_index import ClientFiles, MemoryIndex
from shoal.engine.store.run_facts import RunFacts
from shoal.methods.contract.base import Method
from shoal.methods.contract.site_sums import LayerSums
from shoal.methods.scores.evaluation import table_metrics
from shoal.methods.scores.withheld import WITHHELD, bounded_scores
from shoal.methods.training.batch_statistics import added

BY_SITE = "_by_site"
"""End of the name of a mean over sites."""


@dataclass(frozen=True)
class SiteEvaluation:
    """Evaluates a server state at the sites.

    Args:
        facts: of the run.
        call: has a site do a request.
        server: file of the state.
        round: of the state.
        memories: after the round.
    """

    facts: RunFacts
    call: Call
    server: Path
    round: int
    memories: MemoryIndex

    def recalibrate(self, *, final: bool) -> Answer:
        """Return the tensors that replace those of the state in its evaluation, layer by layer with BatchNorm.

        Args:
            final: whether it is the last evaluation.
        """
        if type(self.facts.method).recalibrate is Method.recalibrate:
            return EvaluateAnswer()
        known: list[Mapping[str, np.ndarray]] = []
        while True:
            answers = self.ask(Recalibrate, final, tuple(known))
            if isinstance(answers, Failure):
                return answers
            layers = [LayerSums.from_arrays(answer.sums) for answer in answers if answer.sums]
            if not layers:
                return next((answer for answer in answers if answer.judged), answers[0])
            known.append(added(layers).arrays())

    def evaluate(self, *, final: bool) -> Answer:
        """Return the metrics of the state, beside which are the tensors that replace its own; argument as above."""
        answers = self.ask(Evaluate, final)
        if isinstance(answers, Failure):
            return answers
        return EvaluateAnswer(joint_metrics(self.facts.method, answers))

    def ask(self, kind: Callable[..., StateRequest], *arguments: Any) -> list[EvaluateAnswer] | Failure:
        """Return the answers of all sites to a request, in the order of their names, or the first failure.

        Args:
            kind: of the request.
            arguments: further ones of the request.
        """
        requests = []
        for site, about in self.facts.lineage.sites.items():
            files: tuple[ClientFiles, ...] = ()
            if self.facts.method.evaluation_reads_memory:
                files = tuple(self.memories.client(client) for client in about.clients)
            requests.append(kind(self.facts.run.path, self.round, self.server, files, *arguments, site=site))
        with ThreadPoolExecutor(len(requests), thread_name_prefix="sites") as threads:
            answers = list(threads.map(self.call, requests))
        failed = next((answer for answer in answers if isinstance(answer, Failure)), None)
        return failed or [answer for answer in answers if isinstance(answer, EvaluateAnswer)]


def joint_metrics(method: Method, sites: Sequence[EvaluateAnswer]) -> dict[str, float]:
    """Return the metrics of all samples from those of each site.

    Args:
        method: of the run.
        sites: the answer of each site that has samples.
    """
    having_tables = [site for site in sites if "table" in site.sums]
    tables = [site.sums["table"] for site in having_tables]
    metrics = {}
    if any((table == WITHHELD).any() for table in tables):
        metrics = bounded_scores(tables, sum(int(site.sums["samples"][0]) for site in having_tables))
    elif tables:
        metrics = table_metrics(np.sum(tables, axis=0))
    for name in dict.fromkeys(name for site in sites for name in site.metrics):
        having = [site for site in sites if name in site.metrics]
        if name.partition("/")[0] in method.of_the_server:
            metrics[name] = having[0].metrics[name]
        elif name not in metrics:
            weights = [float(site.sums["samples"][0]) for site in having]
            metrics[name + BY_SITE] = float(np.average([site.metrics[name] for site in having], weights=weights))
    return metrics
