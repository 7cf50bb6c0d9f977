"""What a worker slot does: train a cohort of clients, evaluate a server state, or say every sample's cluster.

Requests and answers are small dictionaries (of clusters: a few numbers a sample); tensors stay in files of the run
folder. A client's update is complete
when its done-file is there, so that a round that was cut short is taken up where it was.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import torch

from core.errors import ShoalError
from engine.checkpoint import SERVER, MemoryIndex, round_folder
from engine.codec import StoreError, file_digest, load_message, load_server, read_json, save_message, write_json
from engine.opened_run import OpenedClients, OpenedRun
from engine.run_folder import RunFolder
from methods.assignment import assignment_of
from methods.base import Client, ClientError, Message, Server, Update
from methods.scores.quality import silhouette


class Worker:
    """One slot's state between requests: the runs it has opened and the last server state it read.

    Args:
        device: where it computes.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._opened: OpenedRun | None = None
        self._server: tuple[Path, Server] | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked and say how it went; an exception becomes an `error` entry."""
        try:
            if request["do"] == "train":
                return self.train(request)
            if request["do"] == "assign":
                return self.assign(request)
            return self.evaluate(request)
        except ShoalError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:  # a worker must outlive any request
            return {
                "error": f"{type(error).__name__}: {error}",
                "kind": type(error).__name__,
                "traceback": traceback.format_exc(),
            }

    def opened(self, path: str) -> OpenedRun:
        """The run at `path`, opened on first use; only the last run used stays open."""
        if self._opened is None or str(self._opened.run.path) != path:
            self._opened = OpenedRun(RunFolder(Path(path)), self.device, working=True)
        return self._opened

    def server(self, path: Path) -> Server:
        """A server state, read once per round."""
        if self._server is None or self._server[0] != path:
            self._server = (path, load_server(path, self.device))
        return self._server[1]

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Train the clients of a cohort; each ends in files under work/ or in an error of its own."""
        opened = self.opened(request["run"])
        round = request["round"]
        server = self.server(round_folder(opened.run, round - 1) / SERVER)
        results: dict[int, dict[str, Any]] = {}
        entries = {entry["client"]: entry for entry in request["clients"]}
        for group in request["groups"]:
            results |= self.train_group(opened, server, round, [entries[c] for c in group if c in entries])
        return {"clients": results}

    def train_group(
        self, opened: OpenedRun, server: Server, round: int, entries: list[dict[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """The exchanges of some clients, their local work in one computation where there are several."""
        started = time.perf_counter()
        results: dict[int, dict[str, Any]] = {}
        begun: list[tuple[Message, Client]] = []
        for entry in entries:
            try:
                client = opened.client(entry["client"], round, entry["memory"], entry["inbox"])
                begun.append((opened.method.broadcast(server, client.id), client))
            except StoreError:
                raise
            except Exception as error:
                results[entry["client"]] = failure(error)
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
                began = written - trained / len(begun)  # of the local work each has its share
                results[client.id] = self.write(opened, round, down, client, update, began)
            except StoreError:
                raise  # a full disk is no client's fault
            except Exception as error:
                results[client.id] = failure(error)
        return results

    def write(
        self, opened: OpenedRun, round: int, down: Message, client: Client, update: Update, began: float
    ) -> dict[str, Any]:
        """A client's answers, written to work/; `began` is when it would have begun had it worked alone."""
        number = client.id
        check_finite(update, number, round)
        sample_bytes = opened.prepared.spec.sample_bytes
        folder = opened.run.work / f"{round:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        files = {"update": f"update-{number}.safetensors"}
        save_message(folder / files["update"], update.message)
        if update.memory is not None:
            files["memory"] = f"memory-{number}.safetensors"
            save_message(folder / files["memory"], Message(update.memory))
        for peer, message in sorted(update.peers.items()):
            files[f"peer-{peer}"] = f"peer-{number}-{peer}.safetensors"
            save_message(folder / files[f"peer-{peer}"], message)
        done = {
            "client": number,
            "samples": len(client.train),
            "bytes_up": update.message.size(sample_bytes),
            "bytes_down": down.size(sample_bytes),
            "bytes_d2d": sum(m.size(sample_bytes) for m in update.peers.values()),
            "metrics": update.metrics,
            "peers": {str(peer): m.size(sample_bytes) for peer, m in sorted(update.peers.items())},
            "files": files,
            "sha256": {name: file_digest(folder / name) for name in files.values()},
            "seconds": time.perf_counter() - began,
        }
        write_json(folder / f"done-{number}.json", done, sync=False)
        return done

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Metrics of the server state of a round, whose file is named in the request."""
        started = time.perf_counter()
        opened = self.opened(request["run"])
        server = self.server(Path(request["server"]))
        clients = OpenedClients(opened, request["round"], MemoryIndex.of(request["links"]))
        evaluation = opened.evaluation(request["round"], final=request["final"])
        metrics = opened.method.evaluate(server, clients, evaluation)
        return {"metrics": {k: float(v) for k, v in metrics.items()}, "seconds": time.perf_counter() - started}

    def assign(self, request: dict[str, Any]) -> dict[str, Any]:
        """The cluster of every sample under a server state, as arrays; on request how well clusters are separated."""
        opened = self.opened(request["run"])
        server = self.server(Path(request["server"]))
        clients = OpenedClients(opened, request["round"], MemoryIndex.of(request["links"]))
        evaluation = opened.evaluation(request["round"], final=True)
        found = assignment_of(opened.method, server, clients, evaluation)
        cluster = found.cluster.cpu().numpy()
        answer = {"clusters": found.clusters, "cluster": cluster, "confidence": found.confidence.cpu().numpy()}
        for name in ("centres", "distance"):
            if (value := getattr(found, name)) is not None:
                answer[name] = value.cpu().numpy()
        if request["judge"]:
            rng = evaluation.streams.numpy("quality.silhouette")
            answer["silhouette"] = silhouette(found.features.float().cpu().numpy(), cluster, rng)
        return answer


def failure(error: Exception) -> dict[str, Any]:
    """What a client's failure is told as."""
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    return {"error": text, "traceback": "".join(traceback.format_exception(error))}


def check_finite(update: Update, client: int, round: int) -> None:
    """Refuse an update with NaN or infinite values before it reaches the server.

    Raises:
        ClientError: names the client and the tensor.
    """
    parts = [("update", update.message), *((f"message to client {p}", m) for p, m in update.peers.items())]
    parts.append(("private memory", Message(update.memory or {})))
    for what, message in parts:
        for name, tensor in message.tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ClientError(
                    f"the {what} of client {client} in round {round} holds NaN or infinite values in {name!r}; "
                    "lower local.lr or check the client's data"
                )


def finished_work(run: RunFolder, round: int, client: int) -> dict[str, Any] | None:
    """What a client already finished in a round that was cut short, if every file of it is whole."""
    folder = run.work / f"{round:04d}"
    try:
        done = read_json(folder / f"done-{client}.json")
        whole = all(file_digest(folder / name) == digest for name, digest in done["sha256"].items())
    except (StoreError, OSError, KeyError):
        return None
    return done if whole else None


def load_update(run: RunFolder, round: int, done: dict[str, Any]) -> Update:
    """A finished client's update as `aggregate` takes it (peer messages and memory stay in their files)."""
    message = load_message(run.work / f"{round:04d}" / done["files"]["update"])
    return Update(message, metrics=done["metrics"], client=done["client"])
