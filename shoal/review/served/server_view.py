"""What the server of a run reads of single rows: the run is played again in memory, and every message is kept.

The attack (`row_reading`) gets what a server has: its own state, the messages, and the clients' numbers of rows. It is
judged by the true rows, which only a simulation knows.

Symbols in shapes: n rows, m rows that were read, k columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist

from shoal.engine.messages.fixed_point import sum_of_parts
from shoal.engine.messages.wire import SumPlan
from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.client_sampling import ClientSampling
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.codec import server_digest
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.warm_start import initial_state
from shoal.engine.workers.arithmetic import arithmetic
from shoal.engine.workers.worker import outgoing_update, part_of_sum
from shoal.methods.contract.base import Client, Method, Server
from shoal.methods.contract.message import Message, Tensors
from shoal.review.served.explain import check_rows_here
from shoal.review.served.row_reading import Sent, read_rows

NEAR = 0.1
"""Standard deviations of a column within which a value counts as read."""
EXACT = 1e-6
"""Standard deviations of a column within which a value counts as read exactly."""
ATTACKS = "shoal.attacks"
"""The group of entry points by which a package adds an attack on messages that hold no sums of rows: `weights`, a
function from an `OpenedRun` to a `ServerView`."""
EVERYBODY = -1
"""Stands for the client where the server sees only sums over all clients."""
COUNTS = ("counts", "weights")
"""Names of the tensors of a message that hold numbers of rows."""


class ServerView(NamedTuple):
    """Shares of the training rows that the server of a run reads.

    Attributes:
        rows: number of training rows.
        exact: share of which every column is read exactly.
        near: share of which every column is read to within `NEAR` standard deviations.
        guessed: the same share where each row is taken for the centre of its cluster, as anyone can who has the model;
            of an added attack, where it is guessed otherwise.
        wrong: number of rows that the attack takes for read, and that no client holds.
        columns: share of its columns from which on a row counts as read: of images no view may show some pixels.
    """

    rows: int
    exact: float
    near: float
    guessed: float
    wrong: int
    columns: float = 1.0


@dataclass
class Sender:
    """What the server has of one client, or of the sum of all clients, in one space.

    Attributes:
        rows: the true rows (n, k), to judge by.
        sent: sums of groups of them.
        total: the sum of all rows (k,), where the server knows it from the client's moments.
    """

    rows: np.ndarray
    total: np.ndarray | None
    sent: list[Sent] = field(default_factory=list)


class Exchange(NamedTuple):
    """A message to a client, what the client makes of it, and what of that leaves the client."""

    message: Message
    client: Client
    answer: Message
    left: Message


Senders = dict[tuple[int, bytes], Sender]
"""What the server has, by client and by digest of the true rows: a space in which a client's rows are others."""


def server_view(run: RunFolder) -> ServerView:
    """Return what the server of a finished run reads of the clients' rows: of a masked run, from sums over all clients.

    Raises:
        RunError: the rows are at sites, the run's messages hold no sums of rows and no package adds another attack, it
            had asynchronous rounds, or it cannot be played again to the same bits.
    """
    check_rows_here(run)
    opened = OpenedRun(run)
    settings = opened.settings
    if type(opened.method).summed_rows is Method.summed_rows:
        added = entry_points(group=ATTACKS, name="weights")
        if not added:
            raise RunError(
                f"the messages of run {run.name} hold no sums of rows: docs/privacy.md says what they reveal; "
                "shoal-research (research/) looks for rows in weights"
            )
        view: ServerView = next(iter(added)).load()(opened)
        return view
    if settings.participation.buffer:
        raise RunError(f"run {run.name} has asynchronous rounds (participation.buffer), which are not played again")
    view, server = played(opened, summed=settings.privacy.sums == "masked")
    if not settings.privacy.secret and server_digest(server) != run.status().weights_sha256:
        raise RunError(f"run {run.name} comes to other bits when it is played again: start it again on this machine")
    return view


def played(opened: OpenedRun, *, summed: bool) -> tuple[ServerView, Server]:
    """Play a run in memory; return what its server reads, and the last state.

    Args:
        opened: the run.
        summed: whether the server sees only the sum of the clients' messages.
    """
    senders: Senders = {}
    memories: dict[int, Tensors] = {}
    with one_thread(), arithmetic(opened.precision):
        server = initial_state(opened)
        while not server.finished and server.round < opened.settings.rounds:
            server, exchanges = played_round(opened, server, memories)
            heard = []
            for exchange in exchanges:
                rows = opened.method.summed_rows(exchange.message, exchange.client)
                if rows is not None:
                    total = rows.rows.sum(0).numpy() if rows.total_known else None
                    sent = sent_sums(exchange.message, exchange.left)
                    if opened.settings.privacy.secret:  # the likeliest numbers of rows
                        sent = [one._replace(counts=one.counts.round().clip(0)) for one in sent]
                    heard.append((exchange.client.id, Sender(rows.rows.numpy(), total, sent)))
            if summed and heard:
                heard = [(EVERYBODY, added_up([sender for _, sender in heard]))]
            for number, sender in heard:
                space = hashlib.sha256(sender.rows.tobytes()).digest()
                senders.setdefault((number, space), replace(sender, sent=[])).sent.extend(sender.sent)
    return judged(senders), server


def played_round(opened: OpenedRun, server: Server, memories: dict[int, Tensors]) -> tuple[Server, list[Exchange]]:
    """Play one round again.

    Args:
        opened: the run.
        server: the state before the round.
        memories: of each client; changed.

    Returns:
        The state after the round, and what was sent.
    """
    sampling = ClientSampling(opened, BufferedRounds(opened), ClientHistory())
    updates = []
    exchanges = []
    clients = sampling.draw(server, RoundOutcomes())
    plan = None
    if opened.method.context.summed:  # without masks, which gives the same bits
        plan = SumPlan(1, tuple(clients), sum(opened.federation.sizes[client] for client in clients))
    for number in clients:
        message = opened.method.broadcast(server, number)
        client = replace(opened.client(ClientFiles(number), server.round + 1), memory=memories.get(number, {}))
        answer = opened.method.client_update(message, client)
        update = outgoing_update(opened, message, client, answer)
        part = part_of_sum(opened, server.round + 1, client, update, plan)
        updates.append(replace(part, client=number))
        if update.memory is not None:
            memories[number] = update.memory
        exchanges.append(Exchange(message, client, answer.message, update.message))
    if plan is not None:
        form = opened.method.declared(server, 0, 0)
        updates = list(sum_of_parts(updates, form, plan, mean=opened.method.averages))
    return opened.method.aggregate(server, updates), exchanges


def sent_sums(down: Message, up: Message) -> list[Sent]:
    """Return the numbers and sums of groups in a client's message, with the centres among what it was sent.

    Each centre that comes without a number, as of k-FED, is taken for one row.
    """
    tensors = up.tensors
    counts = next((tensors[name] for name in COUNTS if name in tensors), None)
    if "sums" in tensors and counts is not None:
        sums = tensors["sums"]
        alike = (t for t in down.tensors.values() if t.shape[-2:] == sums.shape[-2:] and t.numel() == sums.numel())
        centres = next(alike, None)
    elif "centres" in tensors:
        centres = None
        if counts is None:
            centres = tensors["centres"].double()
            counts = torch.ones(centres.shape[:-1])
        sums = tensors["centres"] * counts[..., None]
    else:
        return []
    shape = (-1, *sums.shape[-2:])
    places: Iterable[np.ndarray | None] = repeat(None)
    if centres is not None:
        places = centres.reshape(shape).numpy()
    return list(map(Sent, counts.reshape(-1, shape[1]).numpy(), sums.reshape(shape).double().numpy(), places))


def added_up(senders: list[Sender]) -> Sender:
    """Return what the server has of all clients together, of which it sees no single message.

    Local centres, which masks exclude, are left out.
    """
    rows = np.concatenate([sender.rows for sender in senders])
    totals = [sender.total for sender in senders if sender.total is not None]
    total = np.sum(totals, 0) if len(totals) == len(senders) else None
    sent = []
    for parts in zip(*(sender.sent for sender in senders), strict=True):
        if parts[0].centres is not None:
            counts, sums = (sum(part) for part in zip(*((one.counts, one.sums) for one in parts), strict=True))
            sent.append(Sent(counts, sums, parts[0].centres))
    return Sender(rows, total, sent)


def judged(senders: Senders) -> ServerView:
    """Return the shares of the rows that the attack reads, in the space where it reads most of a client's rows.

    Raises:
        RunError: nobody sent a sum of rows.
    """
    clients: dict[int, ServerView] = {}
    for (client, _), sender in senders.items():
        if not sender.sent:
            continue  # of landmarks: the space in which they are tied, less offsets
        alike = [one.rows for one in senders.values() if one.rows.shape[1] == sender.rows.shape[1]]
        view = view_of(sender, np.concatenate(alike).std(0))
        if client not in clients or view.exact > clients[client].exact:
            clients[client] = view
    if not clients:
        raise RunError("the run has no round whose messages hold sums of rows: nothing is looked for")
    return of_all_clients(list(clients.values()))


def of_all_clients(views: list[ServerView]) -> ServerView:
    """Return the shares of all rows, from those of each client's."""
    rows = [view.rows for view in views]
    exact, near, guessed = np.average([view[1:4] for view in views], 0, rows).tolist()
    return ServerView(sum(rows), exact, near, guessed, sum(view.wrong for view in views))


def view_of(sender: Sender, spread: np.ndarray) -> ServerView:
    """Return the shares of one client's rows that the attack reads; `spread` has the deviation of each column (k,)."""
    read = read_rows(len(sender.rows), sender.sent, sender.total)
    centres = next((one.centres for one in reversed(sender.sent) if one.centres is not None), read[:0])
    return compared(sender.rows, read, centres, spread)


def compared(rows: np.ndarray, read: np.ndarray, guesses: np.ndarray, spread: np.ndarray) -> ServerView:
    """Return the shares of a client's rows (n, k) that are read, and guessed.

    Args:
        rows: the client's.
        read: what an attack takes for rows, (m, k).
        guesses: what anyone would, (g, k).
        spread: deviation of each column, (k,).
    """
    away = distances(rows, read, spread)
    nearest = away.min(1, initial=np.inf)
    guessed = distances(rows, guesses, spread).min(1, initial=np.inf)
    shares = [float(below.mean()) for below in (nearest < EXACT, nearest < NEAR, guessed < NEAR)]
    wrong = int((away.min(0, initial=np.inf) >= NEAR).sum())
    return ServerView._make((len(nearest), *shares, wrong, 1.0))


def distances(rows: np.ndarray, read: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the largest distance over all columns, in standard deviations, of each row (n, k) from each other (m, k).

    Columns that do not vary are left out.
    """
    varies = spread > 0
    scaled = [values[:, varies] / spread[varies] for values in (rows, read)]
    return np.asarray(cdist(*scaled, "chebyshev"))
