"""The pool of a run whose samples lie at sites: a request is of one site, and goes to no other.

A site gets the settings that methods read, the sizes of all clients, and messages to its own clients: never the
server's state as a whole, nor a path of this machine. What comes back is compared with its digests, and lies then in
the run's folder as if a worker here had written it. Of a private memory only round and digest come back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shoal.core.durable import private_folder
from shoal.core.errors import FailureCause
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.data.sets.by_client import OWNER
from shoal.data.sets.prepared import read_manifest
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    EvaluateAnswer,
    Failure,
    Keys,
    Recalibrate,
    ShareKeys,
    SiteAssignAnswer,
    StateRequest,
    Train,
    TrainAnswer,
)
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.frames import (
    ClientAtSite,
    Files,
    MemoryVersion,
    SiteCall,
    array_bytes,
    arrays_of,
    digest,
    named,
)
from shoal.engine.sites.held_out import Compare
from shoal.engine.sites.transport import SiteFailed, SiteLost, Transport, ask_site
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.codec import (
    PRIVATE,
    StoreError,
    load_server,
    load_tensors,
    read_file,
    server_bytes,
    tensor_bytes,
    write_atomic,
    write_sealed,
)
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.judged import judged_tensors
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.baselines import Comparison

BY_HAND = ", once its person has approved the run: the run names the command"
OF_THE_LEAD = ("tracking", "workers", "checkpoint")
"""Sections of the settings that say nothing to a site."""


class SitesPool:
    """The sites of a transport as a pool; a run asks a site for one thing at a time.

    Args:
        transport: reaches the sites.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.count = self.max_requests = max(1, len(transport.sites))
        self._facts = cache(lambda run: RunFacts(RunFolder(run)))
        self._open: set[tuple[str, Path]] = set()

    def call(self, request: Any) -> Answer:
        """Have a site do a request that names it, or clients of it.

        Raises:
            SiteLost: it did not answer.
        """
        facts = self._facts(request.run)
        if isinstance(request, ShareKeys):
            return self.keys(facts, request)
        if isinstance(request, Train):
            (site,) = {facts.sites[client.client] for client in request.clients}
        else:
            site = request.site
        try:
            self.open(site, facts)
            if isinstance(request, Train):
                return self.train(site, facts, request)
            return self.judge(site, facts, request)
        except SiteFailed as failed:
            answer = failed.answer
            if isinstance(request, Train):
                return TrainAnswer({client.client: answer for client in request.clients})
            return answer

    def keys(self, facts: RunFacts, request: ShareKeys) -> Answer:
        """Return the public keys of clients, each from its site; all sites are asked, also where one refuses."""
        public: dict[int, str] = {}
        failures = []
        for site in sorted({facts.sites[client] for client in request.clients}):
            clients = tuple(ClientAtSite(c) for c in request.clients if facts.sites[c] == site)
            try:
                self.open(site, facts)
                told, _ = self.ask(site, facts, self.call_of(facts, "keys", clients=clients), {})
                public |= {client.client: str(told.get(str(client.client))) for client in clients}
            except SiteFailed as failed:
                failures.append(failed.answer)
        if failures:
            return Failure("; ".join(failure.error for failure in failures), failures[0].cause)
        return Keys(public)

    def open(self, site: str, facts: RunFacts) -> None:
        """Describe the run to a site, once.

        Raises:
            SiteLost: it does not answer. SiteFailed: it refuses the run.
        """
        if site not in self._transport.sites:
            raise SiteLost(f"site {site} cannot be reached")
        if (site, facts.run.path) in self._open:
            return
        text = text_for_sites(facts.settings)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        lineage = replace(facts.lineage, settings_file_sha256=sha256).with_folders("", "")
        data = facts.run.folder_of("data")
        partition = [
            (facts.run.folder_of("partition") / name).read_bytes() for name in ("partition.parquet", "partition.json")
        ]
        told = {
            "settings": text,
            "lineage": record_to_json(lineage),
            "manifest": asdict(replace(read_manifest(data), files={})),
            "sizes": {part: np.bincount(np.load(data / name)).tolist() for part, name in OWNER.items()},
            "partition.parquet": digest(partition[0]),
            "partition.json": digest(partition[1]),
        }
        self.ask(site, facts, self.call_of(facts, "open", facts=told), named(partition))
        self._open.add((site, facts.run.path))

    def call_of(self, run: RunFacts, do: Any, **entries: Any) -> SiteCall:
        """Return a request about a run."""
        return SiteCall(do, shoal_version().sha256, run.settings.data.name, run.lineage.id, **entries)

    def ask(self, site: str, facts: RunFacts, call: SiteCall, files: Files) -> tuple[Mapping[str, Any], Files]:
        """Return the facts and files with which a site answers; the run's events say when it is waited for."""
        try:
            return ask_site(
                self._transport, site, call, files, lambda message: facts.run.event("site_away", message=message)
            )
        except SiteLost:
            self._open.discard((site, facts.run.path))  # it may have lost its runs too
            raise

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, site: str, facts: RunFacts, request: Train) -> TrainAnswer:
        """Have a site train clients of its own, and keep their answers in the run's folder."""
        files = {}
        for client in request.clients:
            for path in client.message:
                if client.sha256[path] not in files:
                    files[client.sha256[path]] = read_file(request.run / path, client.sha256[path])
        clients = tuple(client_at_site(request.run, client) for client in request.clients)
        plan = {} if request.plan is None else {"plan": record_to_json(request.plan)}
        call = self.call_of(facts, "train", round=request.round, clients=clients, groups=request.groups, facts=plan)
        told, back = self.ask(site, facts, call, files)
        results = {}
        for client in request.clients:
            results[client.client] = self.result(site, request, client.client, told.get(str(client.client)), back)
        return TrainAnswer(results)

    def result(self, site: str, request: Train, client: int, told: Any, files: Files) -> FinishedWork | Failure:
        """Return what became of a client; write its answer to the run's folder."""
        paths = RoundPaths(request.run, request.round)
        try:
            if "error" in told:
                return SiteFailed(site, str(told["error"]), FailureCause(told.get("cause"))).answer
            done = record_from_json(FinishedWork, told["done"])
            if done.client != client or done.sha256.keys() != done.names or done.peers:
                raise ValueError("it is not of this client")
            contents = {name: files[done.sha256[name]] for name in done.names - {done.memory}}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return SiteFailed(site, f"the answer of client {client} cannot be read ({error})").answer
        if done.memory is not None:
            # It stands here for the private memory, which its site keeps.
            stub = {"site": site, "round": request.round, "sha256": done.sha256[done.memory]}
            contents[done.memory] = tensor_bytes({}, stub)
        done = replace(done, sha256={name: digest(content) for name, content in contents.items()})
        private_folder(paths.work.parent)
        private_folder(paths.work)
        for name, content in contents.items():
            write_atomic(paths.work / name, content, sync=False, mode=PRIVATE)
        write_sealed(paths.done(client), record_to_json(done), sync=False)
        return done

    # --- judging --------------------------------------------------------------------------------------------------

    def judge(self, site: str, facts: RunFacts, request: StateRequest) -> Answer:
        """Have a site judge the part of a server state that its clients may have."""
        own = facts.lineage.sites[site].clients
        server = load_server(request.server).with_model(judged_tensors(request.server))
        contents = {"server": server_bytes(facts.method.judged_part(server, own))}
        if isinstance(request, Recalibrate):
            contents["layers"] = array_bytes({str(number): layer for number, layer in enumerate(request.layers)})
        if isinstance(request, Compare):
            contents["champion"] = server_bytes(facts.method.judged_part(load_server(request.champion), own))
        clients = tuple(client_at_site(request.run, client) for client in request.clients if client.client in own)
        digests = {name: digest(content) for name, content in contents.items()}
        do = type(request).__name__.lower()  # a site is asked by the name of the request
        final = getattr(request, "final", True)
        call = self.call_of(facts, do, round=request.round, clients=clients, final=final, facts=digests)
        told, back = self.ask(site, facts, call, named(list(contents.values())))
        try:
            arrays = arrays_of(back[told["arrays"]])
            if isinstance(request, Assign):
                comparison = None
                if "comparison" in told:
                    comparison = record_from_json(Comparison, told["comparison"])
                return SiteAssignAnswer(told["clusters"], arrays["sums"]["counts"], told["silhouette"], comparison)
            metrics = {str(name): float(value) for name, value in told["metrics"].items()}
            return EvaluateAnswer(metrics, arrays.get("judged", {}), arrays.get("sums", {}))
        except (StoreError, BadRecord, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SiteFailed(site, f"its answer cannot be read ({error})") from None


def text_for_sites(settings: Settings) -> str:
    """Return the settings of a run as its sites get them, in YAML."""
    values = {key: value for key, value in settings.to_json().items() if key not in OF_THE_LEAD}
    return yaml.safe_dump(values, sort_keys=False)


def answers_to_plan(transport: Transport, settings: Settings) -> dict[str, bool]:
    """Return what each site says to a run with these settings, and whether it would take part; none trains anything."""
    told = {"settings": text_for_sites(settings)}
    answers = {}
    for site in transport.sites:
        call = SiteCall("plan", shoal_version().sha256, settings.data.name, facts=told)
        try:
            answer, _ = ask_site(transport, site, call, {})
            answers[f"site {site} would take part{BY_HAND * bool(answer.get('asks'))}"] = True
        except (SiteFailed, SiteLost) as error:
            answers[str(error)] = False
    return answers


def client_at_site(run: Path, files: ClientFiles) -> ClientAtSite:
    """Return from what a client's work begins, as its site is told."""
    memory = None
    if files.memory is not None:
        _, kept = load_tensors(run / files.memory, sha256=files.sha256[files.memory])
        memory = MemoryVersion(kept["round"], kept["sha256"])
    return ClientAtSite(files.client, tuple(files.sha256[path] for path in files.message), memory)
