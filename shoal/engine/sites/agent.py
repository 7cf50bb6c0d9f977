"""A site: it answers the lead's requests with `Worker.handle`, on a run folder of its own.

    runs/ID/settings.yaml  lineage.json  data/  partition/      the run, opened by the lead
    runs/ID/memory/                                             private memories, of each client the last two
    runs/ID/work/0007/                                          answers of the newest round, and what was asked

Asked again for the same work, a site sends the bytes that it sent before, also where they hold noise. What a client is
asked is known by digests: of the server's message, of its memory and of its inbox.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.durable import new_version, private_folder
from shoal.core.errors import ShoalError
from shoal.core.records import record_from_json, record_to_json
from shoal.data.sets.elsewhere import site_set, write_joined
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, Prepared, open_prepared
from shoal.engine.messages.wire import Assign, Assigned, Evaluate, Evaluated, Failed, Recalibrate, Train, Trained
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.frames import (
    BadFrame,
    ClientAtSite,
    Files,
    SiteAnswer,
    SiteCall,
    array_bytes,
    arrays_of,
    digest,
    named,
    pack,
    unpack,
)
from shoal.engine.sites.site_table import counts_of, write_table
from shoal.engine.sites.transport import SiteRefusal
from shoal.engine.store.checkpoint import adopt, sync_files
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.codec import (
    PRIVATE,
    read_file,
    read_sealed,
    write_atomic,
    write_sealed,
)
from shoal.engine.store.finished_work import FinishedWork, finished_work, forget_work
from shoal.engine.store.lineage import Lineage
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import RoundPaths, client_folder, inbox_path, memory_path
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder, write_lineage
from shoal.engine.workers.worker import Worker, failure
from shoal.methods.contract.base import Method
from shoal.methods.registry import METHODS

MEMORIES_KEPT = 2
"""Versions of a client's private memory: a lead that is resumed may ask for the last but one."""
RUN_ID = re.compile(r"[0-9a-f]{32}")
Rules = Callable[[SiteCall, Settings | None], str | None]
"""Returns why a site refuses a request of a run with these settings; None: it does not."""


def no_rules(call: SiteCall, settings: Settings | None) -> None:
    """Refuse nothing."""


Result = tuple[dict[str, Any], Files] | Failed
"""What becomes of a request: facts and files, or a failure."""


class SiteAgent:
    """One site.

    Args:
        name: of the site.
        store: of its data.
        runs: folder of its runs.
        rules: its own, beside those that hold at every site.
        peers: whether raw samples may be sent to clients of other sites.
        device: of its computations.
    """

    def __init__(
        self,
        name: str,
        store: Path,
        runs: Path,
        rules: Rules = no_rules,
        *,
        peers: bool = False,
        device: str = "cpu",
    ) -> None:
        torch.set_num_threads(1)  # for the same bits as on every worker
        self.name = name
        self.store = store.resolve()
        self.runs = runs.resolve()
        self.rules = rules
        self.peers = peers
        self.worker = Worker(device)

    def answer(self, content: bytes) -> bytes:
        """Answer a request of the lead; whatever goes wrong becomes an answer, without paths of this site."""
        try:
            call, files = unpack(SiteCall, content)
            result = self.do(call, files)
        except Exception as error:
            result = failure(error)
        if isinstance(result, Failed):
            return pack(SiteAnswer(self.without_paths(result.error), result.cause.value), {})
        facts, back = result
        return pack(SiteAnswer(facts=facts), back)

    def do(self, call: SiteCall, files: Files) -> Result:
        """Do a request, and return facts and files.

        Raises:
            SiteRefusal: the site's rules refuse it. ShoalError: it cannot be done.
        """
        if call.code != shoal_version().sha256:
            raise SiteRefusal(f"its Shoal is {shoal_version().sha256[:12]}, and that of the lead {call.code[:12]}")
        if call.do == "describe":
            self.check(call, None)
            return record_to_json(site_set(self.prepared(call.data))), {}
        if not RUN_ID.fullmatch(call.run):
            raise BadFrame("the id of the run is none")
        run = RunFolder(self.runs / call.run)
        if call.do == "open":
            self.open(run.path, call, files)
            return {}, {}
        if not (run.path / LINEAGE).exists():
            raise ShoalError("the run was not opened here")
        self.check(call, run.settings())
        here = set(self.worker.opened(run.path).here)
        if strangers := [client.client for client in call.clients if client.client not in here]:
            raise SiteRefusal(f"client {strangers[0]} is not one of its own")
        if call.do == "train":
            return self.train(run, call, files)
        return self.judge(run, call, files)

    def check(self, call: SiteCall, settings: Settings | None) -> None:
        """Refuse what the site's rules do not allow.

        Raises:
            SiteRefusal: says why.
        """
        if reason := self.rules(call, settings):
            raise SiteRefusal(reason)
        if settings is None or self.peers:
            return
        if METHODS[settings.method.name].declared_to_peer is not Method.declared_to_peer:
            raise SiteRefusal(f"method {settings.method.name!r} sends samples to other clients, which is not allowed")

    def without_paths(self, text: str) -> str:
        """Return a message without the places of this site's files."""
        for place in (self.runs, self.store):
            text = text.replace(str(place), self.name)
        return text

    def prepared(self, name: str) -> Prepared:
        """Return the site's own set of a name."""
        return open_prepared(own_folder(self.store, Path(name).name))

    # --- a run ----------------------------------------------------------------------------------------------------

    def open(self, place: Path, call: SiteCall, files: Files) -> None:
        """Make the folder of a run, unless it is there as the lead describes it.

        Raises:
            SiteRefusal: the rules refuse it. ShoalError: its parts do not belong together.
        """
        asked = digest(json.dumps([record_to_json(call), sorted(files)]).encode())
        marker = place / "opened.json"
        if not (marker.exists() and read_sealed(marker) == {"asked": asked}):
            manifest = Manifest(**json.loads(call.texts["manifest"]))
            lineage = record_from_json(Lineage, json.loads(call.texts["lineage"]))
            private_folder(self.runs)
            sizes = {part: list(of_part) for part, of_part in call.sizes.items()}
            with new_version(place) as scratch:
                write_joined(scratch / "data", manifest, sizes, (self.name, self.prepared(manifest.name)))
                (scratch / "partition").mkdir()
                for name in ("partition.parquet", "partition.json"):
                    (scratch / "partition" / name).write_bytes(files[call.texts[name]])
                (scratch / SETTINGS).write_text(call.texts["settings"])
                write_lineage(scratch / LINEAGE, lineage.with_folders(str(place / "data"), str(place / "partition")))
                write_sealed(scratch / marker.name, {"asked": asked})
        self.check(call, RunFolder(place).settings())
        self.worker.opened(place)

    def memory(self, run: RunFolder, client: ClientAtSite) -> str | None:
        """Return the file of a client's private memory, in the run's folder; None: it has none.

        Raises:
            SiteRefusal: the site does not have this version any more.
        """
        if client.memory is None:
            return None
        path = memory_path(client.client, client.memory.round)
        if not (run.path / path).exists():
            raise SiteRefusal(f"the memory of client {client.client} after round {client.memory.round} is not kept")
        return path

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, run: RunFolder, call: SiteCall, files: Files) -> Result:
        """Train clients that have no answer to the same request yet; return the answers of all."""
        paths = RoundPaths(run.path, call.round)
        for other in run.work.glob("*"):
            if other.name != paths.work.name:
                shutil.rmtree(other)
        private_folder(run.work)
        private_folder(paths.work)
        for name, content in files.items():
            write_atomic(paths.work / f"{name}.safetensors", content, sync=False, mode=PRIVATE)
        done = {client.client: self.kept_answer(run, call.round, client) for client in call.clients}
        private = run.settings().privacy.clip is not None
        groups = []
        for group in call.groups:
            missing = tuple(client for client in group if done.get(client) is None)
            if missing:  # noise that has left this site is never drawn again
                groups.append(missing if private else group)
        results: dict[int, FinishedWork | Failed] = {client: work for client, work in done.items() if work is not None}
        if groups:
            clients = tuple(self.files_of(run, call.round, client) for client in call.clients)
            answer = self.worker.handle(Train(run.path, call.round, clients, tuple(groups)))
            if isinstance(answer, Failed):
                return answer
            assert isinstance(answer, Trained)
            results |= answer.clients
        self.keep_memories(run, call.round, [work for work in results.values() if isinstance(work, FinishedWork)])
        facts = {}
        back: dict[str, bytes] = {}
        for number, result in results.items():
            if isinstance(result, Failed):
                facts[str(number)] = self.failed(result)
                continue
            facts[str(number)] = {"done": result.to_json()}
            sent = [read_file(paths.work / name, result.sha256[name]) for name in result.names - {result.memory}]
            back |= named(sent)
        return facts, back

    def failed(self, result: Failed) -> dict[str, Any]:
        """Return a failure as the lead gets it."""
        return {"error": self.without_paths(result.error), "cause": result.cause.value}

    def kept_answer(self, run: RunFolder, round: int, client: ClientAtSite) -> FinishedWork | None:
        """Return a client's answer to the same request; None: there is none, and one to another request is dropped."""
        marker = RoundPaths(run.path, round).work / f"asked-{client.client}.json"
        asked = {"asked": digest(json.dumps(record_to_json(client), sort_keys=True).encode())}
        kept = finished_work(run, round, client.client)
        if marker.exists() and read_sealed(marker) == asked:
            return kept
        if kept is not None:
            forget_work(run, round, kept)
        write_sealed(marker, asked, sync=False)
        return None

    def files_of(self, run: RunFolder, round: int, client: ClientAtSite) -> ClientFiles:
        """Return the files from which a client begins; messages from other clients get their place."""
        work = RoundPaths(run.path, round).work
        message = {f"{(work / name).relative_to(run.path)}.safetensors": name for name in client.message}
        inbox = {}
        for sent in client.inbox:
            path = inbox_path(client.client, sent.sender, sent.round)
            adopt(run, work / f"{sent.sha256}.safetensors", path)
            inbox[path] = sent.sha256
        sha256 = {**message, **inbox}
        memory = self.memory(run, client)
        if memory is not None and client.memory is not None:
            sha256[memory] = client.memory.sha256
        return ClientFiles(client.client, memory, tuple(inbox), sha256, tuple(message))

    def keep_memories(self, run: RunFolder, round: int, done: list[FinishedWork]) -> None:
        """Keep the new private memories, and of each client the newest few up to this round."""
        new = []
        for work in done:
            if work.memory is None:
                continue
            adopt(run, RoundPaths(run.path, round).work / work.memory, memory_path(work.client, round))
            folder = run.path / client_folder(work.client)
            versions = sorted(folder.glob("*.safetensors"), key=lambda path: int(path.stem))
            later = [path for path in versions if int(path.stem) > round]
            for path in [*later, *versions[: len(versions) - len(later)][:-MEMORIES_KEPT]]:
                path.unlink()
            new += [run.path / memory_path(work.client, round), folder]
        sync_files(new)

    # --- judging --------------------------------------------------------------------------------------------------

    def judge(self, run: RunFolder, call: SiteCall, files: Files) -> Result:
        """Judge a server state on the site's samples, and return sums."""
        server = run.path / "judged" / "server.safetensors"
        private_folder(server.parent)
        write_atomic(server, files[call.texts["server"]], sync=False, mode=PRIVATE)
        clients = tuple(self.files_of(run, call.round, client) for client in call.clients)
        state = (run.path, call.round, server, clients)
        if call.do == "recalibrate":
            layers = arrays_of(files[call.texts["layers"]])
            known = tuple(layers[name] for name in sorted(layers, key=int))
            answer = self.worker.handle(Recalibrate(*state, call.final, known, site=self.name))
        elif call.do == "evaluate":
            answer = self.worker.handle(Evaluate(*state, call.final, site=self.name))
        else:
            answer = self.worker.handle(Assign(*state, judge=True, site=self.name))
        if isinstance(answer, Failed):
            return answer
        if isinstance(answer, Assigned):
            opened = self.worker.opened(run.path)
            write_table(opened, self.prepared(opened.prepared.manifest.name), answer)
            facts: dict[str, Any] = {"clusters": answer.clusters, "silhouette": answer.silhouette}
            if answer.comparison is not None:
                facts["comparison"] = record_to_json(answer.comparison)
            return sums(facts, {"sums": {"counts": counts_of(opened, answer)}})
        assert isinstance(answer, Evaluated)
        return sums({"metrics": answer.metrics}, {"sums": answer.sums, "judged": answer.judged})


def sums(facts: dict[str, Any], arrays: Mapping[str, Mapping[str, np.ndarray]]) -> Result:
    """Return an answer with arrays in groups, which travel as one file."""
    content = array_bytes(arrays)
    return {**facts, "arrays": digest(content)}, named([content])
