"""Requests, answers, done-files and manifests: what is sent or written is what is read, under the same keys."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import FailureCause
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.messages.inspection import MessageRefused
from shoal.engine.messages.wire import (
    Answer,
    Assign,
    Evaluate,
    EvaluateAnswer,
    Failure,
    Recalibrate,
    Request,
    Train,
    TrainAnswer,
)
from shoal.engine.rounds.round_record import client_row
from shoal.engine.store.codec import StoreError
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import Manifest, RoundRecord, RoundSeconds
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import RoundPaths, inbox_path, memory_path, sender_of
from shoal.engine.store.tables import make_tables
from shoal.engine.workers.worker import failure
from shoal.methods.contract.base import ClientError

RUN = Path("/runs/one")
CLIENTS = (
    ClientFiles(3, "memory/3/0006.safetensors", sha256={"memory/3/0006.safetensors": "ab"}, message=("work/0007/m",)),
)
TRAIN = Train(RUN, 7, (*CLIENTS, ClientFiles(5, None, ("a", "b"))), ((3, 5),))
EVALUATE = Evaluate(RUN, 7, RUN / "server.safetensors", CLIENTS, final=True)
IN_PARTS = Evaluate(RUN, 7, RUN / "server.safetensors", CLIENTS, final=False, threads=3)
RECALIBRATE = Recalibrate(RUN, 7, RUN / "server.safetensors", CLIENTS, final=True)
ASSIGN = Assign(RUN, 7, RUN / "server.safetensors", CLIENTS)
DONE = {
    "client": 3,
    "samples": 40,
    "bytes_up": 8,
    "bytes_down": 16,
    "bytes_d2d": 4,
    "metrics": {"loss": 0.5},
    "peers": {"5": 4},
    "sha256": {"update-3.safetensors": "aa", "peer-3-5.safetensors": "bb"},
    "seconds": 1.5,
}
"""A done-file."""


@pytest.mark.parametrize(
    "request_",
    [TRAIN, EVALUATE, IN_PARTS, RECALIBRATE, ASSIGN],
)
def test_requests_travel_as_they_are(request_: Request) -> None:
    assert pickle.loads(pickle.dumps(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        TrainAnswer({3: record_from_json(FinishedWork, DONE), 5: Failure("no samples", FailureCause.MESSAGE_REFUSED)}),
        EvaluateAnswer({"acc": 0.5}),
        Failure("gone", FailureCause.FILE),
    ],
)
def test_answers_travel_as_they_are(answer: Answer) -> None:
    assert pickle.loads(pickle.dumps(answer)) == answer


def test_a_done_file_keeps_its_keys() -> None:
    done = record_from_json(FinishedWork, DONE)
    assert (done.update, done.memory, done.peer(5)) == ("update-3.safetensors", None, "peer-3-5.safetensors")
    assert record_to_json(done) == DONE
    with pytest.raises(BadRecord):
        record_from_json(FinishedWork, {"client": 3})


def test_a_manifest_keeps_what_it_says() -> None:
    row = client_row(record_from_json(FinishedWork, DONE))
    record = RoundRecord({"acc": 0.5}, (row,), (1,), RoundSeconds(1.0, 0.1, 0.2, 1.3))
    manifest = Manifest(7, 12.5, {"memories.safetensors": "ee"}, replace(record, refusals={"4": 2}))
    assert record_from_json(Manifest, json.loads(json.dumps(record_to_json(manifest)))) == manifest
    tables = {name: table.to_dict("records") for name, table in make_tables([Manifest(0, 1.0, {}), manifest]).items()}
    counted = {"round": 7, "client": 3, "samples": 40, "bytes_up": 8, "bytes_down": 16, "bytes_d2d": 4, "seconds": 1.5}
    assert tables["clients"] == [{**counted, "loss": 0.5}]
    assert tables["rounds"] == [
        {
            "round": 7,
            "clients": 1,
            "left_out": 1,
            "bytes_up": 8,
            "bytes_down": 16,
            "bytes_d2d": 4,
            "seconds_train": 1.0,
            "seconds_aggregate": 0.1,
            "seconds_evaluate": 0.2,
            "seconds_round": 1.3,
            "finished_at": 12.5,
            "acc": 0.5,
        }
    ]


def test_the_paths_of_a_round() -> None:
    paths = RoundPaths(RUN, 7)
    assert paths.manifest == RUN / "rounds/0007/manifest.json"
    assert paths.done(3) == RUN / "work/0007/done-3.json"
    assert memory_path(3, 7) == "memory/0/3/0007.safetensors"
    assert memory_path(12_345, 7) == "memory/12/12345/0007.safetensors", "a thousand clients share a folder"
    inbox = inbox_path(receiver=5, sender=3, round=7)
    assert inbox == "memory/0/5/inbox/0007-3.safetensors"
    assert sender_of(inbox) == 3


def test_a_cause_follows_from_the_type_of_an_exception() -> None:
    assert failure(StoreError("gone")).cause is FailureCause.FILE
    assert failure(MessageRefused("NaN")).cause is FailureCause.MESSAGE_REFUSED
    assert failure(ClientError("ill")).cause is FailureCause.OTHER
    assert failure(ValueError("ill")).cause is FailureCause.OTHER
