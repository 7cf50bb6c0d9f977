"""A site: it answers the lead's requests with `Worker.handle`, on a run folder of its own.

    runs/ID/
      settings.yaml  lineage.json  data/  partition/      the run, opened by the lead
      memory/                                             private memories, of each client the last two
      work/                                               answers of the newest round, and what was asked

Asked again for the same work, a site sends the bytes that it sent before, also where they hold noise. What a client is
asked is known by digests: of the server's message and of its memory.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from shoal.core.durable import private_folder
from shoal.core.errors import ShoalError
from shoal.core.private_file import make_private
from shoal.core.records import record_from_json, record_to_json
from shoal.data.sets.elsewhere import SiteSet, site_set, write_joined
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, PreparedSet, open_prepared, read_manifest
from shoal.engine.messages.masks import KEYS
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    AssignAnswer,
    Evaluate,
    EvaluateAnswer,
    Failure,
    Keys,
    Recalibrate,
    ShareKeys,
    Train,
    TrainAnswer,
)
from shoal.engine.settings.run_settings import Settings, make_settings
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
    plan_of,
    unpack,
)
from shoal.engine.sites.held_out import Compare, compare
from shoal.engine.sites.own_rules import OwnRules
from shoal.engine.sites.site_table import told_counts, write_table
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
from shoal.engine.store.round_paths import RoundPaths, client_folder, memory_path
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder, write_lineage
from shoal.engine.workers.worker import Worker, failure
from shoal.methods.contract.base import Method
from shoal.methods.features.column_facts import are_counts, column_spread
from shoal.methods.registry import METHODS
from shoal.methods.scores.evaluation import table_metrics
from shoal.methods.scores.withheld import withhold

MEMORIES_KEPT = 2
"""Versions of a client's private memory: a lead that is resumed may ask for the last but one."""
MAX_ROWS = 20_000
"""Rows from which the spread of columns is measured."""
PATH = re.compile(r"(?<![\w.<>-])/[^\s'\"`,;:()]+")
"""An absolute path in a message."""
RUN_ID = re.compile(r"[0-9a-f]{32}")
Result = tuple[dict[str, Any], Files] | Failure
"""What becomes of a request: facts and files, or a failure."""


class SiteAgent:
    """One site.

    Args:
        name: of the site.
        store: of its data.
        runs: folder of its runs.
        rules: its own, beside those that hold at every site.
        device: of its computations.
    """

    def __init__(
        self,
        name: str,
        store: Path,
        runs: Path,
        rules: OwnRules,
        device: str = "cpu",
    ) -> None:
        torch.set_num_threads(1)  # for the same bits as on every worker
        self.name = name
        self.store = store.resolve()
        self.runs = runs.resolve()
        self.rules = rules
        self.worker = Worker(device)

    def answer(self, content: bytes) -> bytes:
        """Answer a request of the lead; whatever goes wrong becomes an answer, without paths of this site."""
        call = None
        try:
            call, files = unpack(SiteCall, content)
            result = self.do(call, files)
        except Exception as error:
            result = failure(error)
        answer = self.packed(result)
        try:
            self.rules.leave(call, answer)
        except Exception as error:
            return self.packed(failure(error))
        return answer

    def packed(self, result: Result) -> bytes:
        """Return what became of a request as bytes."""
        if isinstance(result, Failure):
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
            self.check(call)
            return record_to_json(self.described(call.data)), {}
        if call.do == "plan":
            self.check(call)
            return {"asks": self.rules.asks}, {}
        if not RUN_ID.fullmatch(call.run):
            raise BadFrame("the id of the run is none")
        run = RunFolder(self.runs / call.run)
        if call.do == "open":
            self.open(run.path, call, files)
            return {}, {}
        return self.do_of_run(run, call, files)

    def do_of_run(self, run: RunFolder, call: SiteCall, files: Files) -> Result:
        """Do a request about a run that was opened here; errors as of `do`."""
        if not (run.path / LINEAGE).exists():
            raise ShoalError("the run was not opened here")
        self.check(call)
        here = set(self.worker.opened(run.path).here)
        if strangers := [client.client for client in call.clients if client.client not in here]:
            raise SiteRefusal(f"client {strangers[0]} is not one of its own")
        if call.do == "keys":
            answer = self.worker.handle(ShareKeys(run.path, tuple(client.client for client in call.clients)))
            assert isinstance(answer, Failure | Keys)
            return answer if isinstance(answer, Failure) else ({str(c): key for c, key in answer.public.items()}, {})
        if call.do == "train":
            return self.train(run, call, files)
        return self.judge(run, call, files)

    def check(self, call: SiteCall, *, here: bool = True) -> None:
        """Refuse what the site's rules do not allow.

        Args:
            call: the request.
            here: whether its run has a folder here; without, nobody can approve it.

        Raises:
            SiteRefusal: says why.
        """
        settings = samples = None
        if call.do == "plan" or not here:
            settings = make_settings(yaml.safe_load(call.texts["settings"]))
            samples = min(site_set(self.prepared(settings.data.name)).train)
        elif call.run:
            opened = self.worker.opened(self.runs / call.run)
            counts = opened.partition.counts()
            settings, samples = opened.settings, min(int(counts[client]) for client in opened.here)
        if reason := self.rules.refusal(call, settings, samples):
            raise SiteRefusal(reason)
        if settings is None:
            return
        if METHODS[settings.method.name].declared_to_peer is not Method.declared_to_peer:
            raise SiteRefusal(f"method {settings.method.name!r} sends samples to other clients, and they stay here")
        if call.run and here and (reason := self.rules.waits(call.run, settings)):
            raise SiteRefusal(reason)

    def described(self, name: str) -> SiteSet:
        """Return what the site tells of its set, with what `method.name: auto` asks about columns where it may."""
        self.rules.take_in(name)
        prepared = self.prepared(name)
        about = site_set(prepared)
        spec = prepared.spec
        if spec.kind != "vector" or not self.rules.tells_columns:
            return about
        rows = torch.from_numpy(np.array(prepared.train_x[:MAX_ROWS])).flatten(1)
        counted = not spec.column_widths and are_counts(rows)
        return replace(about, spread=column_spread([rows], spec.column_widths), counts=counted)

    def without_paths(self, text: str) -> str:
        """Return a message in which no path of this site is left."""
        for place in (self.runs, self.store, self.runs.parent):
            text = text.replace(str(place), "//")  # which may hold blanks, unlike what a pattern finds
        return PATH.sub("a file there", text)

    def prepared(self, name: str) -> PreparedSet:
        """Return the site's own set of a name."""
        return open_prepared(own_folder(self.store, Path(name).name))

    # --- a run ----------------------------------------------------------------------------------------------------

    def open(self, place: Path, call: SiteCall, files: Files) -> None:
        """Write what the lead says of a run to its folder here; memories and answers that are there stay.

        Raises:
            SiteRefusal: the rules refuse it. ShoalError: its parts do not belong together.
        """
        manifest = Manifest(**json.loads(call.texts["manifest"]))
        lineage = record_from_json(Lineage, json.loads(call.texts["lineage"]))
        if manifest.name != call.data or lineage.id != call.run:
            raise BadFrame("a run of another name or set is described")
        self.check(call, here=False)
        private_folder(self.runs)
        private_folder(place)
        data = place / "data"
        if not (data / "manifest.json").exists() or read_manifest(data).digest != manifest.digest:
            write_joined(
                data,
                manifest,
                {part: list(of_part) for part, of_part in call.sizes.items()},
                (self.name, self.prepared(manifest.name)),
            )
        partition = place / "partition"
        private_folder(partition)
        for name in ("partition.parquet", "partition.json"):
            write_atomic(partition / name, files[call.texts[name]])
        write_atomic(place / SETTINGS, call.texts["settings"].encode())
        write_lineage(place / LINEAGE, lineage.with_folders(str(data), str(partition)))
        self.worker = Worker(self.worker.device)  # which has not opened the run as it was before
        self.check(call)
        for client in self.worker.opened(place).here:
            make_private(place / KEYS / str(client), self.rules.mask_key)

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
        self.keep_messages(run, call.round, files)
        results: dict[int, FinishedWork | Failure] = {}
        for client in call.clients:
            kept = self.kept_answer(run, call, client)
            if kept is not None:
                results[client.client] = kept
        if groups := self.groups_to_train(run, call, results.keys()):
            asked = [client for group in groups for client in group]
            self.rules.spend(call, run.settings(), asked)
            clients = tuple(self.files_of(run, call.round, client) for client in call.clients)
            answer = self.worker.handle(Train(run.path, call.round, clients, groups, plan_of(call)))
            if isinstance(answer, Failure):
                return answer
            assert isinstance(answer, TrainAnswer)
            results |= answer.clients
        # Also of answers that were kept: the site may have been killed before their memories were.
        self.keep_memories(run, call.round, TrainAnswer(results))
        return self.answers(RoundPaths(run.path, call.round).work, results)

    def keep_messages(self, run: RunFolder, round: int, files: Files) -> None:
        """Write the messages to clients of a round; what is left of other rounds goes."""
        work = RoundPaths(run.path, round).work
        for other in run.work.glob("*"):
            if other != work:
                shutil.rmtree(other)
        private_folder(run.work)
        private_folder(work)
        for name, content in files.items():
            write_atomic(work / f"{name}.safetensors", content, sync=False, mode=PRIVATE)

    def answers(self, work: Path, results: Mapping[int, FinishedWork | Failure]) -> Result:
        """Return what became of each client as the lead gets it, without private memories."""
        facts: dict[str, Any] = {}
        back: dict[str, bytes] = {}
        for number, result in results.items():
            if isinstance(result, Failure):
                facts[str(number)] = {"error": self.without_paths(result.error), "cause": result.cause.value}
            else:
                facts[str(number)] = {"done": record_to_json(result)}
                back |= named([read_file(work / name, result.sha256[name]) for name in result.names - {result.memory}])
        return facts, back

    def groups_to_train(self, run: RunFolder, call: SiteCall, kept: Collection[int]) -> tuple[tuple[int, ...], ...]:
        """Return the groups with a client that has no answer, as a whole: the same bits, after an interruption too.

        Where answers hold noise, those who have one are left out: they would draw other noise.
        """
        private = run.settings().privacy.clip is not None
        groups = []
        for group in call.groups:
            missing = tuple(client for client in group if client not in kept)
            if missing:
                groups.append(missing if private else group)
        return tuple(groups)

    def kept_answer(self, run: RunFolder, call: SiteCall, client: ClientAtSite) -> FinishedWork | None:
        """Return a client's answer to the same request; None: there is none, and one to another request is dropped."""
        round = call.round
        marker = RoundPaths(run.path, round).work / f"asked-{client.client}.json"
        what = [record_to_json(client), call.texts.get("plan")]
        asked = {"asked": digest(json.dumps(what, sort_keys=True).encode())}
        check_mask(run, call, client.client, asked)
        kept = finished_work(run, round, client.client)
        if marker.exists() and read_sealed(marker) == asked:
            return kept
        if kept is not None:
            forget_work(run, round, kept)
        write_sealed(marker, asked, sync=False)
        return None

    def files_of(self, run: RunFolder, round: int, client: ClientAtSite) -> ClientFiles:
        """Return the files from which a client begins."""
        work = RoundPaths(run.path, round).work
        message = {f"{(work / name).relative_to(run.path)}.safetensors": name for name in client.message}
        memory = self.memory(run, client)
        sha256 = dict(message)
        if memory is not None and client.memory is not None:
            sha256[memory] = client.memory.sha256
        return ClientFiles(client.client, memory, (), sha256, tuple(message))

    def keep_memories(self, run: RunFolder, round: int, answer: TrainAnswer) -> None:
        """Keep the new private memories, and of each client the newest few up to this round."""
        new = []
        for work in answer.finished.values():
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
        answer: Answer = EvaluateAnswer()
        if call.do == "recalibrate":
            layers = arrays_of(files[call.texts["layers"]])
            known = tuple(layers[name] for name in sorted(layers, key=int))
            answer = self.worker.handle(Recalibrate(*state, call.final, known, site=self.name))
        elif call.do == "assign":
            answer = self.worker.handle(Assign(*state, site=self.name))
        elif call.do == "compare" and not hides_rows(run.settings()):
            champion = server.with_name("champion.safetensors")
            write_atomic(champion, files[call.texts["champion"]], sync=False, mode=PRIVATE)
            answer = compare(self.worker.opened(run.path), Compare(*state, champion, site=self.name))
        elif call.do == "evaluate" and not hides_rows(run.settings()):
            answer = self.worker.handle(Evaluate(*state, call.final, site=self.name))
        if isinstance(answer, Failure):
            return answer
        if isinstance(answer, AssignAnswer):
            return self.told_of(run, answer)
        assert isinstance(answer, EvaluateAnswer)
        answer = self.without_small_cells(answer)
        return sums({"metrics": answer.metrics}, {"sums": answer.sums, "judged": answer.judged})

    def told_of(self, run: RunFolder, answer: AssignAnswer) -> Result:
        """Write the table of the site's samples, and return what is told of it."""
        opened = self.worker.opened(run.path)
        write_table(opened, self.prepared(opened.prepared.manifest.name), answer)
        counts = told_counts(opened, answer, self.rules.least_group)
        if hides_rows(run.settings()):
            answer = replace(answer, silhouette=None, comparison=None)
            counts = np.zeros_like(counts)
        facts: dict[str, Any] = {"clusters": answer.clusters, "silhouette": answer.silhouette}
        if answer.comparison is not None:
            facts["comparison"] = record_to_json(answer.comparison)
        return sums(facts, {"sums": {"counts": counts}})

    def without_small_cells(self, answer: EvaluateAnswer) -> EvaluateAnswer:
        """Withhold the small cells of a table, and then also the site's scores that follow from the whole table.

        Of fewer samples than the least group nothing is told.
        """
        least = self.rules.least_group
        if answer.sums.get("samples", [least])[0] < least:
            return EvaluateAnswer()
        if "table" not in answer.sums:
            return answer
        whole = answer.sums["table"]
        table = withhold(whole, least)
        told = answer.metrics
        if (table != whole).any():
            told = {name: value for name, value in told.items() if name not in table_metrics(whole)}
        return EvaluateAnswer(told, answer.judged, {**answer.sums, "table": table})


def check_mask(run: RunFolder, call: SiteCall, client: int, asked: Mapping[str, str]) -> None:
    """Refuse to hide two messages of a client behind one mask: their difference would tell of both.

    Args:
        run: at the site.
        call: the request, whose round and attempt decide the mask.
        client: of the site.
        asked: what its message follows from.

    Raises:
        SiteRefusal: it has answered another request of this round and attempt.
    """
    plan = plan_of(call)
    if plan is None or plan.keys is None:
        return
    path = run.path / "masks" / f"{call.round}-{plan.attempt}-{client}.json"
    if not path.exists():
        private_folder(path.parent)
        write_sealed(path, dict(asked))
    elif read_sealed(path) != asked:
        raise SiteRefusal(f"it has answered another request of round {call.round} behind the same mask")


def hides_rows(settings: Settings) -> bool:
    """Return whether noise covers all sums of rows that leave a site: then nothing of an evaluation does."""
    return settings.privacy.secret and METHODS[settings.method.name].totals


def sums(facts: dict[str, Any], arrays: Mapping[str, Mapping[str, np.ndarray]]) -> Result:
    """Return an answer with arrays in groups, which travel as one file."""
    content = array_bytes(arrays)
    return {**facts, "arrays": digest(content)}, named([content])
