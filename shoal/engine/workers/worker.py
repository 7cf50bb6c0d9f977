"""What a worker does: train a cohort of clients, evaluate a server state, or find every sample's cluster.

Requests and answers are those of `shoal.engine.messages.wire`; tensors stay in files of the run's folder. A client's
update is complete when its done-file is there, so that a round that was cut short is taken up where it was.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.messages.evaluation_shards import beside, read_shards, save_shard
from shoal.engine.messages.inspection import Inspection
from shoal.engine.messages.summing import GroupSum
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    Assigned,
    ClientFiles,
    Evaluate,
    Evaluated,
    EvaluateShard,
    Failed,
    Recalibrate,
    Request,
    Train,
    Trained,
)
from shoal.engine.store.codec import StoreError, load_server, private_folder, save_message, write_sealed
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import check_metric_names
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.round_paths import RoundPaths, memory_file, peer_file, update_file, version
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.arithmetic import arithmetic
from shoal.methods.averaging.noise import secret_normal, seeded_normal
from shoal.methods.averaging.private import private_message
from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.declared import bounded
from shoal.methods.contract.message import Message
from shoal.methods.scores.assignment import assignment_of
from shoal.methods.scores.evaluation import predict_shard
from shoal.methods.scores.metrics import AVERAGED, JUDGED_TWICE
from shoal.methods.scores.quality import silhouette
from shoal.methods.scores.shown import shown_features


class Worker:
    """One worker's state between requests: the run it has opened and the last server state it read.

    Args:
        device: where it computes.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._opened: OpenedRun | None = None
        self._server: tuple[tuple[Path, object], Server] | None = None

    def handle(self, request: Request) -> Answer:
        """Do what is asked and say how it went; an exception becomes a `Failed`."""
        try:
            opened = self.opened(request.run)
            with arithmetic(opened.precision, opened.settings.workers.deterministic):
                match request:
                    case Train():
                        return self.train(request)
                    case Evaluate():
                        return self.evaluate(request)
                    case Recalibrate():
                        return self.recalibrate(request)
                    case EvaluateShard():
                        return self.evaluate_shard(request)
                    case Assign():
                        return self.assign(request)
        except Exception as error:  # a worker must outlive any request
            return failure(error)

    def opened(self, path: Path) -> OpenedRun:
        """The run at `path`, opened on first use; only the last run used stays open."""
        if self._opened is None or self._opened.run.path != path:
            self._opened = OpenedRun(RunFolder(path), self.device, working=True)
        return self._opened

    def server(self, path: Path) -> Server:
        """A server state, read once per round; after an interruption another one may lie under the same path."""
        now, known = (path, version(path)), self._server
        if known is None or known[0] != now:
            # What this thread read: another one may be at work from another state.
            known = self._server = now, load_server(path, self.device)
        return known[1]

    def train(self, request: Train) -> Trained:
        """Train the clients of a cohort; each ends in files under work/ or in a failure of its own."""
        opened = self.opened(request.run)
        server = self.server(request.server or RoundPaths(opened.run.path, request.state).server)
        results: dict[int, FinishedWork | Failed] = {}
        known = {each.client: each for each in request.clients}
        for ids in request.groups:
            group = [known[c] for c in ids if c in known]
            train = self.sum_group if opened.settings.workers.summed > 1 else self.train_group
            found = train(opened, server, request.round, group)
            mark_failed(RoundPaths(opened.run.path, request.round), found)
            results |= found
        return Trained(results)

    def sum_group(
        self, opened: OpenedRun, server: Server, round: int, group: list[ClientFiles]
    ) -> dict[int, FinishedWork | Failed]:
        """The exchanges of some clients, whose messages become one sum."""
        results: dict[int, FinishedWork | Failed] = {}
        total, size = GroupSum(RoundPaths(opened.run.path, round)), opened.settings.workers.batched
        for at in range(0, len(group), size):
            results |= self.train_group(opened, server, round, group[at : at + size], total)
        return total.finish(results)

    def train_group(
        self, opened: OpenedRun, server: Server, round: int, group: list[ClientFiles], total: GroupSum | None = None
    ) -> dict[int, FinishedWork | Failed]:
        """The exchanges of some clients, their local work in one computation where there are several.

        Args:
            opened: the run.
            server: the state that they begin from.
            round: the round.
            group: the clients.
            total: what their messages are summed in; None: each is written to a file of its own.
        """
        started = time.perf_counter()
        inspection = Inspection.from_opened(opened, server, round)
        results: dict[int, FinishedWork | Failed] = {}
        begun: list[tuple[Message, Client]] = []
        for each in group:
            try:
                client = opened.client(each.client, round, each.memory, each.inbox, each.sha256)
                begun.append((opened.method.broadcast(server, client.id), client))
            except StoreError:
                raise
            except Exception as error:
                results[each.client] = failure(error)
        try:
            if len(begun) > 1:
                updates: list[Update | Exception] = opened.method.cohort_update(begun)
            else:
                updates = [opened.method.client_update(*exchange) for exchange in begun]
        except Exception as error:
            return results | {client.id: failure(error) for _, client in begun}
        trained = time.perf_counter() - started
        for (down, client), update in zip(begun, updates, strict=True):
            written = time.perf_counter()
            try:
                if isinstance(update, Exception):
                    raise update
                update = leaving(opened, server, down, client, update)
                began = written - trained / len(begun)  # of the local work each has its share
                form = inspection.check(client.id, len(client.train), update)
                if total is None:
                    results[client.id] = self.write(opened, round, down, client, update, began)
                else:
                    results[client.id] = self.write_parts(opened, round, down, client, update, began, {})
                    total.add(client.id, update.message, form)
            except StoreError:
                raise  # a full disk is no client's fault
            except Exception as error:
                results[client.id] = failure(error)
        return results

    def write(
        self, opened: OpenedRun, round: int, down: Message, client: Client, update: Update, began: float
    ) -> FinishedWork:
        """A client's answers, written to work/; `began` is when it would have begun had it worked alone."""
        paths, messages = RoundPaths(opened.run.path, round), {update_file(client.id): ("update", update.message)}
        done = self.write_parts(opened, round, down, client, update, began, messages)
        write_sealed(paths.done(client.id), done.to_json(), sync=False)
        return done

    def write_parts(
        self,
        opened: OpenedRun,
        round: int,
        down: Message,
        client: Client,
        update: Update,
        began: float,
        messages: dict[str, tuple[str, Message]],
    ) -> FinishedWork:
        """As `write`, without the done-file.

        Args:
            opened, round, down, client, update, began: as there.
            messages: what is written besides memory and messages to peers: by name of its file, what it is.
        """
        number = client.id
        check_metric_names(update.metrics)
        sample_bytes = opened.prepared.spec.sample_bytes
        paths = RoundPaths(opened.run.path, round)
        private_folder(opened.run.work)
        private_folder(paths.work)
        if update.memory is not None:
            messages = {**messages, memory_file(number): ("memory", Message(update.memory))}
        for peer, message in sorted(update.peers.items()):
            messages = {**messages, peer_file(number, peer): (f"peer-{peer}", message)}
        peers = {peer: message.size(sample_bytes) for peer, message in sorted(update.peers.items())}
        return FinishedWork(
            client=number,
            samples=len(client.train),
            bytes_up=update.message.size(sample_bytes),
            bytes_down=down.size(sample_bytes),
            bytes_d2d=sum(peers.values()),
            metrics=update.metrics,
            peers=peers,
            files={part: name for name, (part, _) in messages.items()},
            sha256={name: save_message(paths.work / name, message) for name, (_, message) in messages.items()},
            seconds=time.perf_counter() - began,
        )

    def evaluate(self, request: Evaluate) -> Evaluated:
        """Metrics of the server state of a round, recalibrated; of the last one also under the averaged statistics."""
        started = time.perf_counter()
        opened = self.opened(request.run)
        server = self.server(request.server)
        clients = OpenedClients(opened, request.round, request.memory_index)
        evaluation = opened.evaluation(request.round, final=request.final)
        if request.parts:
            found = beside(request.server, self.device)
            evaluation = replace(evaluation, shard_predictions=read_shards(request, self.device, averaged=False))
        else:
            found = opened.method.recalibrate(server, clients, evaluation)
        metrics = opened.method.evaluate(server.with_model(found), clients, evaluation)
        if found and request.final:
            evaluation = replace(evaluation, headline_only=True)
            if request.parts:
                evaluation = replace(evaluation, shard_predictions=read_shards(request, self.device, averaged=True))
            averaged = opened.method.evaluate(server, clients, evaluation)
            metrics |= {f"{name}{AVERAGED}": averaged[name] for name in JUDGED_TWICE if name in averaged}
        numbers = {name: float(value) for name, value in metrics.items()}
        judged = {} if request.parts else {name: tensor.cpu().numpy() for name, tensor in found.items()}
        return Evaluated(numbers, time.perf_counter() - started, judged)

    def recalibrate(self, request: Recalibrate) -> Evaluated:
        """What stands in place of the state's tensors when it is judged."""
        started = time.perf_counter()
        opened = self.opened(request.run)
        clients = OpenedClients(opened, request.round, request.memory_index)
        evaluation = opened.evaluation(request.round, final=request.final)
        found = opened.method.recalibrate(self.server(request.server), clients, evaluation)
        judged = {name: tensor.cpu().numpy() for name, tensor in found.items()}
        return Evaluated({}, time.perf_counter() - started, judged)

    def evaluate_shard(self, request: EvaluateShard) -> Evaluated:
        """A part of what `evaluate` uses of the predictor's answers, into a file of the round's work."""
        started = time.perf_counter()
        opened = self.opened(request.run)
        server = self.server(request.server)
        if not request.averaged:
            server = server.with_model(beside(request.server, self.device))
        evaluation = opened.evaluation(request.round, final=request.final)
        predict, method = opened.method.predictor(server), opened.method
        save_shard(
            request, predict_shard(predict, evaluation, method.shared_in_evaluation, (request.part, request.parts))
        )
        return Evaluated({}, time.perf_counter() - started)

    def assign(self, request: Assign) -> Assigned:
        """The cluster of every sample under a server state; on request how far they are apart, and features to draw."""
        opened = self.opened(request.run)
        server = self.server(request.server)
        clients = OpenedClients(opened, request.round, request.memory_index)
        evaluation = opened.evaluation(request.round, final=True)
        # Found again rather than read: the draws are those of `evaluate`, and not every state was evaluated.
        server = server.with_model(opened.method.recalibrate(server, clients, evaluation))
        found = assignment_of(opened.method, server, clients, evaluation)
        cluster = found.cluster.cpu().numpy()
        score, shown = None, None
        if request.judge:
            features = found.features.float().cpu().numpy()
            score = silhouette(features, cluster, evaluation.streams.numpy("quality.silhouette"))
            shown = shown_features(features, evaluation.streams.numpy("quality.shown"))
        return Assigned(
            found.clusters,
            cluster,
            found.confidence.cpu().numpy(),
            None if found.centres is None else found.centres.cpu().numpy(),
            None if found.distance is None else found.distance.cpu().numpy(),
            score,
            *(shown or ()),
        )


def mark_failed(paths: RoundPaths, results: Mapping[int, FinishedWork | Failed]) -> None:
    """Tell who waits for clients with a deadline (`shoal.engine.rounds.deadlines.CohortDeadline`) which of them will
    not be done.
    """
    for client in (client for client, result in results.items() if isinstance(result, Failed)):
        with contextlib.suppress(OSError):  # without the mark those after it have less time
            private_folder(paths.run / "work")
            private_folder(paths.work)
            paths.failed(client).touch()


def leaving(opened: OpenedRun, server: Server, down: Message, client: Client, update: Update) -> Update:
    """The update as it leaves the client: private where the settings say so."""
    privacy = opened.settings.privacy
    if privacy.clip is None:
        return update
    normal = secret_normal if privacy.noise_source == "secret" else seeded_normal(client.streams.torch("privacy"))
    message = private_message(update.message, down.tensors, privacy.clip, privacy.noise, normal)
    # Noise may bring a value out of its bounds; to bring it back tells nothing more.
    return replace(update, message=bounded(message, opened.method.declared(server, client.id, len(client.train))))


def failure(error: Exception) -> Failed:
    """Return an exception as an answer: its words, its cause and where it happened."""
    where = "".join(traceback.format_exception(error))
    if isinstance(error, ShoalError):
        return Failed(str(error), error.failure_cause, where)
    return Failed(f"{type(error).__name__}: {error}", FailureCause.OTHER, where)
