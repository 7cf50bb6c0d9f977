"""The work of a worker: train a cohort of clients, evaluate a server state, or find every sample's cluster.

`shoal.engine.messages.wire` defines requests and answers; tensors stay in files of the run's folder. A client's update
is complete when its done-file exists, so that an interrupted round resumes where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from torch import Tensor

from shoal.core.durable import private_folder
from shoal.core.errors import ShoalError
from shoal.core.records import record_to_json
from shoal.engine.messages.fixed_point import ATTEMPT, FEWEST_SUMMED, encoded
from shoal.engine.messages.inspection import check_answer
from shoal.engine.messages.masks import keyed_normal, masked, public_key, secret_key
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    AssignAnswer,
    Evaluate,
    EvaluateAnswer,
    Failure,
    Keys,
    Recalibrate,
    Request,
    ShareKeys,
    StateRequest,
    SumPlan,
    Train,
    TrainAnswer,
)
from shoal.engine.settings.hardware import release_freed_memory
from shoal.engine.store.codec import StoreError, load_message, load_server, save_message, tensors_digest, write_sealed
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.round_paths import RoundPaths, memory_file, peer_file, update_file
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.arithmetic import arithmetic
from shoal.engine.workers.null_baselines import null_comparison
from shoal.methods.averaging.noise import Normal, secret_normal
from shoal.methods.averaging.private import noisy_sums, private_message
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Server, Update
from shoal.methods.contract.message import Message
from shoal.methods.contract.site_sums import LayerNeeded, LayerSums, SiteSums
from shoal.methods.scores.assignment import assignment_of
from shoal.methods.scores.evaluation import sample_count
from shoal.methods.scores.quality import silhouette
from shoal.methods.scores.shown import shown_features

MESSAGE_FILES_IN_MEMORY = 4
"""Files of messages that a worker keeps: the clients of a round share most of them."""


class Worker:
    """A worker, which keeps between requests the run that it has opened and the tensors that it read last.

    Args:
        device: device of its computations.
        progress: called after each client.
    """

    def __init__(self, device: str = "cpu", progress: Callable[[], None] = lambda: None) -> None:
        self.device = device
        self._progress = progress
        self._opened: OpenedRun | None = None
        self._read = lru_cache(MESSAGE_FILES_IN_MEMORY)(lambda path, sha256: load_message(path, device, sha256))

    def handle(self, request: Request) -> Answer:
        """Do a request and return its answer; an exception becomes a `Failure`."""
        try:
            opened = self.opened(request.run)
            with arithmetic(opened.precision):
                match request:
                    case ShareKeys():
                        return Keys({client: public_key(request.run, client) for client in request.clients})
                    case Train():
                        return self.train(request)
                    case Evaluate():
                        return self.evaluate(request)
                    case Recalibrate():
                        return self.recalibrate(request)
                    case Assign():
                        return self.assign(request)
        except Exception as error:  # a worker must survive any request
            return failure(error)

    def opened(self, path: Path) -> OpenedRun:
        """Return the run at `path`, opened on first use; only the last run stays open."""
        if self._opened is None or self._opened.run.path != path:
            self._opened = OpenedRun(RunFolder(path), self.device, working=True)
        return self._opened

    def message(self, opened: OpenedRun, files: ClientFiles) -> Message:
        """Return the server's message to a client, whose files clients share; those read last stay in memory.

        Raises:
            StoreError: a file is missing or damaged.
        """
        parts = [self._read(opened.run.path / name, files.sha256[name]) for name in files.message]
        return Message(
            {name: part.tensors[name] for part in parts for name in part.tensors},
            {name: part.facts[name] for part in parts for name in part.facts},
            {name: part.samples[name] for part in parts for name in part.samples},
        )

    def train(self, request: Train) -> TrainAnswer:
        """Train the clients of a cohort; each leaves files under work/ or a failure of its own."""
        opened = self.opened(request.run)
        results: dict[int, FinishedWork | Failure] = {}
        files = {client.client: client for client in request.clients}
        for ids in request.groups:
            group = [files[client] for client in ids if client in files]
            results |= self.train_group(opened, request.round, group, request.plan)
            self._progress()
        return TrainAnswer(results)

    def train_group(
        self, opened: OpenedRun, round: int, group: list[ClientFiles], plan: SumPlan | None
    ) -> dict[int, FinishedWork | Failure]:
        """Train a group of clients, several of them in one computation; return what became of each client.

        Args:
            opened: the run.
            round: the round.
            group: the clients.
            plan: of the sum of messages.
        """
        started = time.perf_counter()
        exchanges, results = self.open_clients(opened, round, group)
        try:
            updates = update_clients(opened, exchanges)
        except Exception as error:
            return results | {client.id: failure(error) for _, client in exchanges}
        share = (time.perf_counter() - started) / max(1, len(exchanges))  # of the local work, for each client
        for (down, client), update in zip(exchanges, updates, strict=True):
            began = time.perf_counter() - share
            try:
                if isinstance(update, Exception):
                    raise update
                update = outgoing_update(opened, down, client, update, plan)
                check_answer(client.id, round, update)
                update = part_of_sum(opened, round, client, update, plan)
                results[client.id] = self.write(opened, round, down, client, update, began)
            except StoreError:
                raise  # a full disk is not the client's fault
            except Exception as error:
                results[client.id] = failure(error)
        return results

    def open_clients(
        self, opened: OpenedRun, round: int, group: list[ClientFiles]
    ) -> tuple[list[tuple[Message, Client]], dict[int, FinishedWork | Failure]]:
        """Return the clients of a group with the messages to them, and the failures of those that cannot be opened.

        Raises:
            StoreError: a file is missing or damaged.
        """
        exchanges: list[tuple[Message, Client]] = []
        failures: dict[int, FinishedWork | Failure] = {}
        for files in group:
            try:
                client = opened.client(files, round)
                exchanges.append((self.message(opened, files), client))
            except StoreError:
                raise
            except Exception as error:
                failures[files.client] = failure(error)
        return exchanges, failures

    def write(
        self,
        opened: OpenedRun,
        round: int,
        down: Message,
        client: Client,
        update: Update,
        began: float,
    ) -> FinishedWork:
        """Write a client's answers and its done-file to work/.

        Args:
            opened: the run.
            round: the round.
            down: the message that the client got.
            client: the client.
            update: its whole answer.
            began: when it would have begun, had it been trained alone (`time.perf_counter`).
        """
        number = client.id
        sample_bytes = opened.prepared.spec.sample_bytes
        paths = RoundPaths(opened.run.path, round)
        private_folder(opened.run.work)
        private_folder(paths.work)
        messages = {update_file(number): update.message}
        if update.memory is not None:
            messages[memory_file(number)] = Message(update.memory)
        for peer, message in sorted(update.peers.items()):
            messages[peer_file(number, peer)] = message
        peers = {peer: message.size(sample_bytes) for peer, message in sorted(update.peers.items())}
        done = FinishedWork(
            client=number,
            samples=len(client.train),
            bytes_up=update.message.size(sample_bytes),
            bytes_down=down.size(sample_bytes),
            bytes_d2d=sum(peers.values()),
            metrics=update.metrics,
            peers=peers,
            sha256={name: save_message(paths.work / name, message) for name, message in messages.items()},
            seconds=time.perf_counter() - began,
        )
        write_sealed(paths.done(number), record_to_json(done), sync=False)
        return done

    def about(self, request: StateRequest, *, final: bool) -> tuple[OpenedRun, Server, Clients, Evaluation]:
        """Return what a request is about: the run, the state, the clients after its round, and the samples."""
        opened = self.opened(request.run)
        clients = OpenedClients(opened, request.round, request.clients)
        server = load_server(request.server, self.device)
        return opened, server, clients, opened.evaluation(request.round, final=final)

    def evaluate(self, request: Evaluate) -> EvaluateAnswer:
        """Compute the metrics of a server state, recalibrated."""
        if request.final:
            release_freed_memory()
        opened, server, clients, evaluation = self.about(request, final=request.final)
        if request.site:  # whose state is recalibrated
            sums = SiteSums()
            metrics = opened.method.evaluate(server, clients, replace(evaluation, at_site=sums))
            counts = {"samples": np.array([sample_count(evaluation)])}
            if sums.tables:
                counts["table"] = sums.tables[-1]
            return EvaluateAnswer({name: float(value) for name, value in metrics.items()}, sums=counts)
        evaluation = replace(evaluation, threads=request.threads)
        judged = opened.method.recalibrate(server, clients, evaluation)
        metrics = opened.method.evaluate(server.with_model(judged), clients, evaluation)
        numbers = {name: float(value) for name, value in metrics.items()}
        return EvaluateAnswer(numbers, {name: tensor.cpu().numpy() for name, tensor in judged.items()})

    def recalibrate(self, request: Recalibrate) -> EvaluateAnswer:
        """Compute, at a site, the tensors that replace those of a state in its evaluation."""
        opened, server, clients, evaluation = self.about(request, final=request.final)
        known = [LayerSums.from_arrays(arrays, self.device) for arrays in request.layers]
        evaluation = replace(evaluation, at_site=SiteSums(known))
        try:
            tensors = opened.method.recalibrate(server, clients, evaluation)
        except LayerNeeded as needed:
            return EvaluateAnswer(sums=needed.sums.arrays())
        judged = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return EvaluateAnswer(judged=judged)

    def assign(self, request: Assign) -> AssignAnswer:
        """Find every sample's cluster under a server state, judge them, and return features to draw."""
        release_freed_memory()
        opened, server, clients, evaluation = self.about(request, final=True)
        if not request.site:  # whose state is recalibrated
            # Computed again and not read: the draws are those of `evaluate`, and not every state was evaluated.
            server = server.with_model(opened.method.recalibrate(server, clients, evaluation))
        assignment = assignment_of(opened.method, server, clients, evaluation)
        cluster = assignment.cluster.cpu().numpy()
        features = assignment.feature_rows
        score = silhouette(features, cluster, evaluation.streams.numpy("quality.silhouette"))
        rows, vectors = shown_features(features, evaluation.streams.numpy("quality.shown")) or (None, None)
        comparison = null_comparison(opened, evaluation, assignment)
        release_freed_memory()  # while the table of clusters is made
        return AssignAnswer(
            assignment.clusters,
            cluster,
            assignment.confidence.cpu().numpy(),
            _array(assignment.centres),
            _array(assignment.distance),
            score,
            rows,
            vectors,
            comparison,
        )


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.cpu().numpy()


def update_clients(opened: OpenedRun, exchanges: list[tuple[Message, Client]]) -> list[Update | Exception]:
    """Return the update of each client, from one computation if there are several, or why it has none."""
    if len(exchanges) > 1:
        return opened.method.cohort_update(exchanges)
    return [opened.method.client_update(*exchange) for exchange in exchanges]


def outgoing_update(
    opened: OpenedRun, down: Message, client: Client, update: Update, plan: SumPlan | None = None
) -> Update:
    """Return the update as it leaves the client: private if the settings say so.

    The noise of a part of a sum follows from the client's key, the run and the update: it is the same in each attempt,
    and of a site, whose key is that of all its runs, another in each run.
    """
    privacy = opened.settings.privacy
    if privacy.clip is None:
        return update
    normal: Normal = secret_normal
    if plan is not None:
        purpose = f"run {opened.lineage.id}, noise {privacy.noise} of {tensors_digest(update.message.tensors)}"
        normal = keyed_normal(secret_key(opened.run.path, client.id), purpose)
    if opened.method.totals:
        noise = privacy.noise * (len(client.train) if privacy.unit == "client" else 1)
        message = noisy_sums(update.message, opened.method.row_bounds(down), noise, normal)
    else:
        message = private_message(update.message, down.tensors, privacy.clip, privacy.noise, normal)
    return replace(update, message=message)


def part_of_sum(opened: OpenedRun, round: int, client: Client, update: Update, plan: SumPlan | None) -> Update:
    """Return the update as a part of the sum that the server gets, with masks if the plan has keys.

    Raises:
        ClientError: fewer than three clients are added up, or a value is out of bounds.
    """
    if plan is None:
        return update
    if len(set(plan.clients)) < FEWEST_SUMMED or client.id not in plan.clients:
        raise ClientError(f"client {client.id} is asked for a sum over clients {plan.clients}: three or more hide it")
    share = len(client.train) / plan.samples if opened.method.averages else None
    parts = encoded(update.message.tensors, share, len(plan.clients))
    if plan.keys is not None:
        purpose = f"run {opened.lineage.id}, round {round}, attempt {plan.attempt}"  # a site's key serves all its runs
        keys = dict(zip(plan.clients, plan.keys, strict=True))
        parts = masked(parts, secret_key(opened.run.path, client.id), client.id, keys, purpose)
    return replace(update, message=Message(parts, {**update.message.facts, ATTEMPT: plan.attempt}))


def failure(error: Exception) -> Failure:
    """Return an exception as an answer: its message and its cause."""
    if isinstance(error, ShoalError):
        return Failure(str(error), error.failure_cause)
    return Failure(f"{type(error).__name__}: {error}")
