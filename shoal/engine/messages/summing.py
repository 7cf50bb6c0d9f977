"""Sums of messages: a worker sums those of a group of clients, so that the server gets one message for each group.

This is for models of many millions of weights, and for hosts that share no file system: no file of a single client is
written, sent and read. The groups depend only on the clients of the round, so that the sums have the same bits on any
workers. The worker inspects each message as the server would, and measures its change. If one change is too large for
its round, the other clients of its group are trained and summed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.core.errors import FailureCause
from shoal.engine.messages.inspection import (
    MAX_ABS_VALUE,
    TO_SERVER,
    Change,
    Inspected,
    Inspection,
    MessageRefused,
    too_large_changes,
)
from shoal.engine.messages.read_ahead import read_ahead
from shoal.engine.messages.wire import Failed
from shoal.engine.store.codec import StoreError, load_message, save_message, write_sealed
from shoal.engine.store.finished_work import FinishedWork, drop_refused
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths, sum_file
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.averaging.mean import WeightedMean
from shoal.methods.contract.base import Server, Update
from shoal.methods.contract.declared import MessageForm, change_norm, start_norm, sum_fault
from shoal.methods.contract.message import Message


@dataclass
class GroupSum:
    """The sum of the messages of a group of clients on a worker.

    Args:
        paths: of the round.
    """

    paths: RoundPaths
    _mean: WeightedMean = field(default_factory=partial(WeightedMean, threads=1))
    _samples: int = 0
    _norms: dict[int, float | None] = field(default_factory=dict)

    def add(self, client: int, message: Message, form: MessageForm | None) -> None:
        """Add a client's message.

        Args:
            client: its id.
            message: to the server, without fault.
            form: declared form of the message.
        """
        tensors = {name: tensor.detach().cpu() for name, tensor in message.tensors.items()}
        samples = message.facts["n"]
        self._mean.add(tensors, float(samples))
        self._samples += samples
        self._norms[client] = None if form is None else change_norm(message, form)

    def finish(self, results: Mapping[int, FinishedWork | Failed]) -> dict[int, FinishedWork | Failed]:
        """Write the sum and the done-files of its clients; return the results with the file of the sum.

        Args:
            results: of each client of the group; work whose message was added names no update yet.
        """
        if not self._norms:
            return dict(results)
        clients = sorted(self._norms)
        name = sum_file(clients[0])
        facts = {"n": self._samples, "clients": clients}
        sha256 = save_message(self.paths.work / name, Message(self._mean.sums, facts))
        found = dict(results)
        for client in clients:
            work = results[client]
            assert isinstance(work, FinishedWork)
            files = {**work.files, "update": name}
            digests = {**work.sha256, name: sha256}
            done = replace(work, files=files, sha256=digests, norm=self._norms[client])
            found[client] = done
            write_sealed(self.paths.done(client), done.to_json(), sync=False)
        return found


@dataclass
class SumsInspection:
    """The sums of a round, inspected before aggregation; see `shoal.engine.messages.inspection.RoundInspection`.

    Args:
        run: the run's folder.
        opened: the run.
        server: the state before the round.
        done: what the clients did, in order of their ids; `settle` leaves those whose answers are taken.

    Attributes:
        refused: failures of the clients whose answers are refused; `FailureCause.SUM_AGAIN` is not the client's fault.
    """

    run: RunFolder
    opened: OpenedRun
    server: Server
    done: list[FinishedWork]
    refused: dict[int, Failed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inspection = Inspection.from_opened(self.opened, self.server)
        changes = {each.client: change for each in self.done if (change := self._change(each)) is not None}
        too_large = too_large_changes(changes)
        wrong = {client: inspection.sentence(client, TO_SERVER, why) for client, why in too_large.items()}
        for each in self.done:
            try:
                inspection.check_work(each, self.opened.federation.sizes[each.client])
            except MessageRefused as error:
                wrong[each.client] = str(error)
        for client, sentence in wrong.items():
            self.refused[client] = Failed(sentence, FailureCause.MESSAGE_REFUSED)
        for group in self._groups():
            excluded = sorted(each.client for each in group if each.client in wrong)
            for each in group:
                if excluded and each.client not in wrong:
                    why = f"client {each.client} is summed again without {', '.join(map(str, excluded))}"
                    self.refused[each.client] = Failed(why, FailureCause.SUM_AGAIN)

    def _form(self, client: int) -> MessageForm | None:
        return self.opened.method.declared(self.server, client, self.opened.federation.sizes[client])

    def _change(self, done: FinishedWork) -> Change | None:
        form = self._form(done.client)
        if done.norm is None or form is None:
            return None
        start = partial(start_norm, tuple(form.tensors), form)
        return Change(done.norm, self.opened.federation.sizes[done.client], start)

    def _groups(self) -> list[list[FinishedWork]]:
        """Return the work of the clients of each sum, in order of their first clients."""
        groups: dict[str, list[FinishedWork]] = {}
        for each in self.done:
            groups.setdefault(each.update, []).append(each)
        return list(groups.values())

    @property
    def size(self) -> int:
        """Bytes of the largest sum: twice those of a message."""
        return 2 * max((each.bytes_up for each in self.done), default=0)

    def updates(self) -> Iterator[Update]:
        """Yield the accepted sums."""
        left = [group for group in self._groups() if not any(each.client in self.refused for each in group)]
        for group, read in zip(left, read_ahead(self.inspect, left, self.size), strict=True):
            found = read()
            if found.refused is not None:
                self.refused |= {each.client: found.refused for each in group}
            if found.update is not None:
                yield found.update

    def settle(self) -> bool:
        """Remove the work of clients whose answers are refused.

        Returns:
            True: no sum that was read must be taken back, since all refusals but those of damaged files, which are not
                aggregated, are known before the first is read.
        """
        self.done = drop_refused(self.run, self.server.round + 1, self.done, self.refused)
        return True

    def inspect(self, group: Sequence[FinishedWork]) -> Inspected:
        """Read a sum and inspect it; threads may call this."""
        first = group[0]
        clients = [each.client for each in group]
        path = RoundPaths(self.run.path, self.server.round + 1).work / first.update
        if len({each.sha256[each.update] for each in group}) > 1:
            return Inspected(refused=Failed(f"{path} is not one sum of {clients}", FailureCause.FILE))
        try:
            message = load_message(path, sha256=first.sha256[first.update])
        except StoreError as error:
            return Inspected(refused=Failed(str(error), FailureCause.FILE))
        form = self._form(first.client)
        sizes = self.opened.federation.sizes
        samples = sum(sizes[client] for client in clients)
        why = sum_fault(message, form, clients, samples, MAX_ABS_VALUE)
        if why is not None:
            return Inspected(refused=Failed(f"{path} cannot be used: {why}", FailureCause.FILE))
        return Inspected(Update(message, client=first.client, summed=tuple(clients)))
