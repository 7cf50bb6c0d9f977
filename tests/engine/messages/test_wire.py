"""Requests, answers, done-files and manifests: what is sent or written is what is read, under the same keys."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from shoal.core.errors import FailureCause
from shoal.engine.cluster.remote_files import RemoteFilesError
from shoal.engine.messages.inspection import MessageRefused
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    ClientFiles,
    Evaluate,
    Evaluated,
    EvaluateShard,
    Failed,
    Recalibrate,
    RemoteRequest,
    Request,
    Train,
    Trained,
)
from shoal.engine.store.codec import StoreError
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import ClientRow, Manifest, PeerBytes, RoundRecord, RoundSeconds
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.packed_map import PackedMap
from shoal.engine.store.round_paths import RoundPaths, round_of, sender_of
from shoal.engine.workers.worker import failure
from shoal.methods.contract.base import ClientError

RUN = Path("/runs/one")
INDEX = MemoryIndex(
    PackedMap.from_mapping({3: "memory/3/0006.safetensors"}),
    PackedMap.from_mapping({5: ("memory/5/inbox/0006-3.safetensors",)}),
)
TRAIN = Train(
    RUN,
    7,
    (ClientFiles(3, ("work/0007/m",), "memory/3/0006.safetensors"), ClientFiles(5, (), None, ("a", "b"))),
    ((3, 5),),
)
EVALUATE = Evaluate(RUN, 7, RUN / "server.safetensors", INDEX, final=True)
IN_PARTS = Evaluate(RUN, 7, RUN / "server.safetensors", INDEX, final=False, parts=3)
RECALIBRATE = Recalibrate(RUN, 7, RUN / "server.safetensors", INDEX, final=True)
SEE = EvaluateShard(RUN, 7, RUN / "server.safetensors", INDEX, final=True, part=1, parts=3, averaged=True)
ASSIGN = Assign(RUN, 7, RUN / "server.safetensors", INDEX, judge=False)
DONE = {
    "client": 3,
    "samples": 40,
    "bytes_up": 8,
    "bytes_down": 16,
    "bytes_d2d": 4,
    "metrics": {"loss": 0.5},
    "peers": {"5": 4},
    "files": {"update": "update-3.safetensors", "peer-5": "peer-3-5.safetensors"},
    "sha256": {"update-3.safetensors": "aa", "peer-3-5.safetensors": "bb"},
    "seconds": 1.5,
}
"""A done-file."""


@pytest.mark.parametrize(
    "request_",
    [
        TRAIN,
        EVALUATE,
        IN_PARTS,
        RECALIBRATE,
        SEE,
        ASSIGN,
        RemoteRequest(TRAIN, "s3://b", "one-1", {"settings.yaml": "ab"}, "back/0", "d", "p"),
    ],
)
def test_requests_travel_as_they_are(request_: Request | RemoteRequest) -> None:
    assert pickle.loads(pickle.dumps(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        Trained({3: FinishedWork.from_json(DONE), 5: Failed("no samples", FailureCause.MESSAGE_REFUSED, "...")}),
        Evaluated({"acc": 0.5}),
        Failed("gone", FailureCause.FILE),
    ],
)
def test_answers_travel_as_they_are(answer: Answer) -> None:
    assert pickle.loads(pickle.dumps(answer)) == answer


def test_a_done_file_keeps_its_keys() -> None:
    done = FinishedWork.from_json(DONE)
    assert (done.update, done.memory, done.peer(5)) == ("update-3.safetensors", None, "peer-3-5.safetensors")
    assert done.to_json() == DONE
    with pytest.raises(KeyError):
        FinishedWork.from_json({"client": 3})


def test_a_manifest_keeps_its_keys() -> None:
    row = ClientRow.from_work(7, FinishedWork.from_json(DONE))
    record = RoundRecord({"acc": 0.5}, (row,), (PeerBytes(7, 3, 5, 4),), (1,), RoundSeconds(1.0, 0.1, 0.2, 1.3))
    entries = json.loads(json.dumps(Manifest(7, 12.5, "cc", record).to_json()))
    assert entries["clients"] == [
        {
            "round": 7,
            "client": 3,
            "samples": 40,
            "bytes_up": 8,
            "bytes_down": 16,
            "bytes_d2d": 4,
            "seconds": 1.5,
            "loss": 0.5,
        }
    ]
    assert entries["links"] == [{"round": 7, "from": 3, "to": 5, "bytes": 4}]
    assert entries["seconds"] == {"train": 1.0, "aggregate": 0.1, "evaluate": 0.2, "round": 1.3}
    assert (entries["round"], entries["left_out"], entries["metrics"]) == (7, [1], {"acc": 0.5})
    assert Manifest.from_json(entries) == Manifest(7, 12.5, "cc", record)
    assert record.totals() == {"bytes_up": 8, "bytes_down": 16, "bytes_d2d": 4}
    sealed = Manifest(0, 1.0, "dd", None, True, {"links.json": "ee"})
    assert Manifest.from_json(json.loads(json.dumps(sealed.to_json()))) == sealed


def test_the_paths_of_a_round() -> None:
    paths = RoundPaths(RUN, 7)
    assert paths.manifest == RUN / "rounds/0007/manifest.json"
    assert paths.done(3) == RUN / "work/0007/done-3.json"
    assert paths.memory(3) == "memory/0/3/0007.safetensors"
    assert paths.memory(12_345) == "memory/12/12345/0007.safetensors", "a thousand clients share a folder"
    inbox = paths.inbox(receiver=5, sender=3)
    assert inbox == "memory/0/5/inbox/0007-3.safetensors"
    assert (round_of(inbox), sender_of(inbox)) == (7, 3)


def test_a_cause_follows_from_the_type_of_an_exception() -> None:
    assert failure(StoreError("gone")).cause is FailureCause.FILE
    assert failure(RemoteFilesError("gone")).cause is FailureCause.REMOTE_FILES
    assert failure(MessageRefused("NaN")).cause is FailureCause.MESSAGE_REFUSED
    assert failure(ClientError("ill")).cause is FailureCause.OTHER
    assert failure(ValueError("ill")).cause is FailureCause.OTHER
