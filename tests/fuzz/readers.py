"""Every reader of bytes from outside, with whole inputs for it.

A reader takes a folder of its own and gives its seeds, and a function that reads one input and returns normally, or
raises an error of the project's that names what `named` says.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

SETTING = (
    r"^\S.*(: (given |there is no such setting|.* is not known)|, line \d+, column \d+: )"
    r"|^[a-z_]+\.[a-z_]+ "
)
"""How a sentence on a wrong setting begins, where the file is whole: the setting is the place."""

LINEAGE = {
    "git": {"commit": None, "dirty": None},
    "data": {"name": "digits", "folder": "x", "digest": "0", "dvc": "0", "source": "x", "subset": ""},
    "partition": {"folder": "y", "digest": "0", "dvc": "0"},
    "settings_sha256": "0",
    "resolved": {"device": "cpu", "precision": "fp32"},
    "hardware": {"cores": 1, "machine": "x", "system": "x", "gpus": [], "python": "3", "torch": "2"},
    "versions": {"shoal": "0"},
    "shoal": {"version": "0", "sha256": "0", "git": {"commit": None, "dirty": None}},
    "layout": 4,
}


@dataclass(frozen=True)
class Opened:
    """A reader at work: what it reads, and what its errors must hold (a regular expression)."""

    seeds: list[bytes]
    read: Callable[[bytes], Any]
    named: str
    structured: bool = False


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _put(path: Path, then: Callable[[], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return then()

    return read


def settings_file(folder: Path) -> Opened:
    from shoal.engine.settings.run_settings import load_settings, make_settings

    path = folder / "mine.yaml"
    texts = [
        b"method: {name: fedpnp}\ndata: {name: digits}\npartition: {kind: dirichlet, beta: 0.5}\nrounds: 3\n",
        b"base: &b {lr: 0.001, batch: 32}\nlocal: {<<: *b, epochs: 1}\nmethod: cfcl\n",
        Path("params.yaml").read_bytes(),
    ]
    settings_files = [
        _json(make_settings({}).to_json()),
        _json({"method": "ifca", "workers": {"slots": 2}, "tracking": {"uri": "x"}}),
    ]
    return Opened([*texts, *settings_files], _put(path, lambda: load_settings(path)), rf"mine\.yaml|{SETTING}")


def settings_values(folder: Path) -> Opened:
    from shoal.engine.settings.run_settings import load_settings, make_settings
    from shoal.methods.registry import BUILT_IN as METHODS

    path = folder / "mine.yaml"
    seeds = [_json(make_settings({"method": name}).to_json()) for name in METHODS]
    return Opened(seeds, _put(path, lambda: load_settings(path)), rf"mine\.yaml|{SETTING}", structured=True)


def set_texts(folder: Path) -> Opened:
    from shoal.engine.settings.run_settings import load_settings

    seeds = [
        b"method.name=fedcc",
        b"data.options={clusters: 3}",
        b"local.lr=1e-3",
        b"workers.address=tcp://host:1",
    ]
    return Opened(seeds, lambda data: load_settings(None, [data.decode("utf-8", "replace")]), rf"--set|{SETTING}")


def prefect_file(folder: Path) -> Opened:
    from shoal.serving.deployments import keep_what_users_set, read_project

    def read() -> Any:
        return keep_what_users_set(read_project(folder), [])

    seed = Path("prefect.yaml").read_bytes()
    whole = _json({"name": "s", "deployments": [{"name": "n", "entrypoint": "e", "work_pool": {"name": "p"}}]})
    return Opened([seed, whole], _put(folder / "prefect.yaml", read), r"prefect\.yaml")


def _table(n: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    frame.insert(0, "client", ["x", "y", "01"] * (n // 3))
    frame["label"] = range(n)
    return frame


def _read_own_table(path: Path) -> Any:
    from shoal.core.errors import DataError
    from shoal.data.intake.names import names_of
    from shoal.data.intake.table_coding import encode, find_coding
    from shoal.data.intake.tables import read_table
    from shoal.data.sets.intake_notes import Intake

    table = read_table(path, text=("client", "label"))
    if "client" not in table.columns:
        raise DataError(f"{path} has no column")
    columns = table.drop(columns=["client"])
    coding = find_coding(columns, path, "refuse", 20, Intake())
    return names_of(table["client"], path, "client"), encode(columns, coding, path, Intake())


def csv_table(folder: Path) -> Opened:
    path = folder / "table.csv"
    seeds = [_table().to_csv(index=False).encode(), b'client,a,b\n1,2,"3"\n01,1e5,-0.5\n']
    return Opened(seeds, _put(path, lambda: _read_own_table(path)), r"table\.csv")


def packed_csv_table(folder: Path) -> Opened:
    path = folder / "table.csv.gz"
    seeds = [gzip.compress(_table().to_csv(index=False).encode(), mtime=0)]
    return Opened(seeds, _put(path, lambda: _read_own_table(path)), r"table\.csv\.gz")


def parquet_table(folder: Path) -> Opened:
    path = folder / "table.parquet"
    dates = _table().assign(d=pd.Timestamp("2020-01-01"), w=pd.Categorical(["u", "v", "u"] * 2))
    seeds = [_table().to_parquet(index=False), dates.to_parquet(index=False), _table().to_parquet(compression="gzip")]
    return Opened(seeds, _put(path, lambda: _read_own_table(path)), r"table\.parquet")


def _image(mode: str, kind: str, **more: Any) -> bytes:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (12, 10), dtype=np.uint16))
    elif mode == "F":
        image = Image.fromarray(rng.random((12, 10), dtype=np.float32))
    elif mode != "RGB":
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, format=kind, **more)
    return file.getvalue()


def _clear() -> list[bytes]:
    """PNGs of which one colour is transparent."""
    return [_image("L", "PNG", transparency=7), _image("RGB", "PNG", transparency=(1, 2, 3)), _image("I;16", "PNG")]


def _images(suffix: str, seeds: list[bytes]) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        from shoal.data.intake.images import read_images

        path = folder / f"picture.{suffix}"

        def read() -> Any:
            taken, rejected = read_images([path.name], folder, (12, 10))
            assert len(taken) + len(rejected) == 1
            assert all(each.reason.isprintable() and len(each.reason) < 300 for each in rejected)

        return Opened(seeds, _put(path, read), "never")

    return opened


def _gif() -> bytes:
    frames = [Image.fromarray(np.full((9, 9), value, np.uint8)) for value in (0, 90, 255)]
    file = io.BytesIO()
    frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def gz_file(folder: Path) -> Opened:
    from shoal.data.sets.readers import unpack

    content = b"\x00\x00\x08\x03" + np.array([2, 3, 4], ">u4").tobytes() + bytes(range(24))
    seeds = [gzip.compress(content, mtime=0), gzip.compress(content, mtime=0) * 2]
    return Opened(seeds, lambda data: unpack(data, "train-idx.gz"), r"train-idx\.gz")


def xz_file(folder: Path) -> Opened:
    from shoal.data.sets.readers import unpack

    seeds = [lzma.compress(bytes(range(256)) * 4), lzma.compress(b"a" * 5000) * 2]
    return Opened(seeds, lambda data: unpack(data, "batch.bin.xz"), r"batch\.bin\.xz")


def names_of_sets(folder: Path) -> Opened:
    from shoal.data.sets.prepare import resolve

    def read(data: bytes) -> Any:
        return resolve(data.decode("utf-8", "replace"))

    return Opened([b"gaussian-clusters10-seed3", b"mnist-shrink2", b"digits-images7-epochs3"], read, "option|data set")


def _prepared(folder: Path) -> Path:
    from shoal.data.sets.prepared import Manifest, write_prepared

    x = np.arange(6 * 16, dtype=np.uint8).reshape(6, 1, 4, 4)
    y = np.array([0, 1, 0, 1, 0, 1], dtype=np.int64)
    manifest = Manifest("tiny", "image", (1, 4, 4), 2, 6, 2, "a test", "none", ("u", "v"))
    arrays = {"train_x": x, "train_y": y, "test_x": x[:2], "test_y": y[:2]}
    write_prepared(folder / "tiny", manifest, arrays, {"client": np.zeros(6, np.int64)})
    return folder / "tiny"


def set_manifest(folder: Path) -> Opened:
    from shoal.data.sets.prepared import open_prepared

    place = _prepared(folder)
    path = place / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("seal")  # what the file says of itself would hide every change of a value
    return Opened(
        [_json(content), path.read_bytes()], _put(path, lambda: open_prepared(place)), "tiny", structured=True
    )


def set_array(folder: Path) -> Opened:
    from shoal.data.sets.prepared import open_prepared

    place = _prepared(folder)
    path = place / "train_x.npy"
    return Opened(
        [path.read_bytes(), (place / "train_y.npy").read_bytes()], _put(path, lambda: open_prepared(place)), "tiny"
    )


def set_column(folder: Path) -> Opened:
    from shoal.data.sets.prepared import open_prepared

    opened = open_prepared(_prepared(folder))
    path = opened.folder / "column_client.npy"
    return Opened([path.read_bytes()], _put(path, lambda: opened.column("client")), "column_client")


def _partition(folder: Path) -> Path:
    from shoal.data.partition.table import Partition, save_partition

    whole = Partition("tiny", "0" * 64, 2, np.arange(4), np.array([0, 0, 1, 1]), np.zeros(4, bool))
    save_partition(whole, folder / "part")
    return folder / "part"


def partition_manifest(folder: Path) -> Opened:
    from shoal.data.partition.table import load_partition

    place = _partition(folder)
    path = place / "partition.json"
    content = json.loads(path.read_text())
    content.pop("seal")
    return Opened(
        [_json(content), path.read_bytes()], _put(path, lambda: load_partition(place)), "part", structured=True
    )


def partition_table(folder: Path) -> Opened:
    from shoal.data.partition.table import load_partition

    place = _partition(folder)
    path = place / "partition.parquet"
    return Opened([path.read_bytes()], _put(path, lambda: load_partition(place)), "part")


def run_status(folder: Path) -> Opened:
    from shoal.engine.store.run_folder import RunFolder

    run = RunFolder(folder)
    seed = {"state": "running", "round": 3, "message": "", "pid": 7, "updated": 1.5}
    return Opened([_json(seed)], _put(folder / "status.json", run.status), r"status\.json", structured=True)


def run_events(folder: Path) -> Opened:
    from shoal.engine.store.run_folder import RunFolder

    run = RunFolder(folder)
    lines = [{"time": 1.0, "event": "started", "round": 0}, {"time": 2.0, "event": "failed", "message": "x"}]
    seed = "".join(json.dumps(line) + "\n" for line in lines).encode()

    def read() -> Any:
        assert all(event.kind for event in run.events() if event.kind != "")

    return Opened([seed], _put(folder / "events.jsonl", read), "never")


def run_settings(folder: Path) -> Opened:
    from shoal.core.digests import file_digest
    from shoal.engine.settings.run_settings import make_settings
    from shoal.engine.store.run_folder import RunFolder

    run = RunFolder(folder)
    seed = _json(make_settings({}).to_json())

    def read() -> Any:
        sha256 = file_digest(folder / "settings.yaml")
        (folder / "lineage.json").write_bytes(_json({**LINEAGE, "settings_file_sha256": sha256}))
        return run.settings()

    return Opened([seed], _put(folder / "settings.yaml", read), rf"settings\.yaml|{SETTING}", structured=True)


def run_lineage(folder: Path) -> Opened:
    from shoal.engine.store.run_folder import RunFolder

    run = RunFolder(folder)
    return Opened([_json(LINEAGE)], _put(folder / "lineage.json", run.lineage), r"lineage\.json", structured=True)


def round_manifest(folder: Path) -> Opened:
    from shoal.core.records import record_to_json
    from shoal.engine.store.checkpoint import load_manifest
    from shoal.engine.store.manifest import ClientRow, Manifest, RoundRecord, RoundSeconds
    from shoal.engine.store.round_paths import RoundPaths
    from shoal.engine.store.run_folder import RunFolder

    row = ClientRow(0, 5, 6, 7, 8, 0.5, {"loss": 1.0})
    record = RoundRecord({"acc": 0.5}, (row,), (2,), RoundSeconds(1, 2, 3, 4))
    paths = RoundPaths(folder, 1)
    paths.checkpoint.mkdir(parents=True)
    seed = _json(record_to_json(Manifest(1, 2.0, {"server.safetensors": "0" * 64}, record)))
    return Opened([seed], _put(paths.manifest, lambda: load_manifest(RunFolder(folder), 1)), r"manifest\.json", True)


def finished_files(folder: Path) -> Opened:
    from shoal.core.records import record_to_json
    from shoal.engine.store.finished_work import FinishedWork, finished_work
    from shoal.engine.store.round_paths import RoundPaths
    from shoal.engine.store.run_folder import RunFolder

    paths = RoundPaths(folder, 1)
    paths.work.mkdir(parents=True)
    (paths.work / "update-0.safetensors").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    name = "update-0.safetensors"
    seed = record_to_json(FinishedWork(0, 5, 6, 7, 8, 0.5, {"loss": 1.0}, {}, {name: digest}))
    return Opened([_json(seed)], _put(paths.done(0), lambda: finished_work(RunFolder(folder), 1, 0)), "never", True)


def clients_numbers(folder: Path) -> Opened:
    """What is taken of a client's metrics and counts can be kept: in the table of clients and in a manifest."""
    from shoal.core.records import record_from_json, record_to_json
    from shoal.engine.messages.client_numbers import counts_fault, metrics_fault
    from shoal.engine.rounds.round_record import client_row
    from shoal.engine.store.finished_work import FinishedWork
    from shoal.engine.store.manifest import Manifest, RoundRecord, RoundSeconds
    from shoal.engine.store.tables import make_tables

    metrics = {"loss": 1.0, "pulled": 3}
    seed = record_to_json(FinishedWork(0, 5, 6, 7, 8, 0.5, metrics, {1: 3}, {"u": "0"}))

    def read(data: bytes) -> Any:
        try:
            done = record_from_json(FinishedWork, json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if metrics_fault(done.metrics) or counts_fault(done, 5):
            return None
        record = RoundRecord({}, (client_row(done),), (), RoundSeconds(1, 2, 3, 4))
        manifest = Manifest(1, 2.0, {}, record)
        json.dumps(record_to_json(manifest))
        other = replace(record, clients=(replace(record.clients[0], metrics={"loss": 0.5}),))
        return make_tables([manifest, replace(manifest, record=other)])["clients"].to_parquet(index=False)

    return Opened([_json(seed)], read, "never", structured=True)


def a_message(folder: Path) -> Opened:
    """What is taken of a message whose facts no method declares can be kept in a file."""
    from shoal.engine.store.codec import tensor_bytes
    from shoal.methods.contract.declared import unfit
    from shoal.methods.contract.message import Message

    seed = _json({"n": 5, "counts": [1, 2.5], "about": {"step": "train", "deep": [[1], {"a": None}]}})

    def read(data: bytes) -> Any:
        try:
            facts = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(facts, dict) or unfit(Message({}, facts)):
            return None
        return tensor_bytes({}, facts)

    return Opened([seed], read, "never", structured=True)


def privacy_ledger(folder: Path) -> Opened:
    from shoal.core.records import record_to_json
    from shoal.core.seal import sealed
    from shoal.engine.rounds.privacy import Ledger
    from shoal.engine.rounds.privacy_ledger import SetLedger

    ledger = Ledger(1.0)
    ledger.add([0, 2], [5, 7])
    whole = {"data": "digits", "runs": {"a": record_to_json(ledger)}}
    path = folder / "digits.json"
    of_set = SetLedger(path, "digits")

    def read_resealed(data: bytes) -> Any:
        with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
            data = json.dumps(sealed(json.loads(data))).encode()
        return _put(path, lambda: of_set.spent(1e-5))(data)

    return Opened([_json(whole)], read_resealed, r"digits\.json", structured=True)


def tensors(folder: Path) -> Opened:
    import torch

    from shoal.engine.store.codec import load_tensors, save_tensors

    path = folder / "server.safetensors"
    save_tensors(path, {"w": torch.arange(6.0), "b": torch.ones(2, 2)}, {"round": 1}, sync=False)
    return Opened([path.read_bytes()], _put(path, lambda: load_tensors(path)), r"server\.safetensors")


def served_json(folder: Path) -> Opened:
    from shoal.data.sets.prepared import DataSpec
    from shoal.review.mlflow_log.pyfunc_input import samples

    spec = DataSpec("digits", "image", (1, 2, 2), 10, 5, 0)
    encoded = base64.b64encode(_image("L", "PNG")).decode()
    seeds = [
        _json([[[[1, 2], [3, 4]]]]),
        _json({"image": [encoded]}),
        _json([{"image": encoded}, {"image": encoded}]),
        _json([1, 2, 3, 4]),
    ]

    def read(data: bytes) -> Any:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):  # the scoring server refuses it
            return None
        return samples(given, spec)

    return Opened(seeds, read, ".", structured=True)


def served_image(folder: Path) -> Opened:
    from shoal.data.sets.prepared import DataSpec
    from shoal.review.mlflow_log.pyfunc_input import samples

    spec = DataSpec("photos", "image", (3, 8, 8), 10, 5, 0)
    encoded = base64.b64encode(_image("RGB", "PNG"))
    seeds = [encoded, b"data:image/png;base64," + encoded]
    return Opened(seeds, lambda data: samples([data.decode("latin-1")], spec), "image 0")


READERS: dict[str, Callable[[Path], Opened]] = {
    "settings YAML": settings_file,
    "settings values": settings_values,
    "--set": set_texts,
    "prefect.yaml": prefect_file,
    "names of sets": names_of_sets,
    "CSV": csv_table,
    "CSV.gz": packed_csv_table,
    "Parquet": parquet_table,
    "PNG": _images("png", [_image(mode, "PNG") for mode in ("L", "RGB", "RGBA", "P", "1", "I;16", "LA")] + _clear()),
    "JPEG": _images("jpg", [_image("RGB", "JPEG"), _image("L", "JPEG"), _image("RGB", "JPEG", progressive=True)]),
    "GIF": _images("gif", [_gif(), _image("P", "GIF")]),
    "TIFF": _images("tiff", [_image("F", "TIFF"), _image("RGB", "TIFF", compression="tiff_lzw"), _image("L", "TIFF")]),
    "AVIF": _images("avif", [_image("RGB", "AVIF"), _image("RGBA", "AVIF")]),
    "BMP": _images("bmp", [_image("RGB", "BMP"), _image("L", "BMP")]),
    "WebP": _images("webp", [_image("RGB", "WEBP"), _image("RGBA", "WEBP", lossless=True)]),
    "PPM": _images("ppm", [_image("RGB", "PPM"), _image("L", "PPM")]),
    "gz": gz_file,
    "xz": xz_file,
    "set's manifest": set_manifest,
    "set's arrays": set_array,
    "set's column": set_column,
    "partition.json": partition_manifest,
    "partition.parquet": partition_table,
    "status.json": run_status,
    "events.jsonl": run_events,
    "a run's settings": run_settings,
    "lineage.json": run_lineage,
    "round's manifest": round_manifest,
    "done-file": finished_files,
    "a client's numbers": clients_numbers,
    "a client's facts": a_message,
    "privacy ledger": privacy_ledger,
    "safetensors": tensors,
    "served JSON": served_json,
    "served image": served_image,
}
"""All readers by name."""
