"""What the lead and a site send each other: one JSON object and files, named by their digests, in one run of bytes.

    8 bytes: length of the text; text: JSON; then the bytes of each file, in the order of the text

No path and no code is in it. A file is compared with its name before anything reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from shoal.core.errors import ShoalError
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.messages.wire import SumPlan
from shoal.engine.store.codec import tensor_bytes, tensors_of

LENGTH_BYTES = 8
MAX_TEXT_BYTES = 1 << 28
Files = Mapping[str, bytes]
"""Contents of files by their hex sha256."""
Record = TypeVar("Record")


class BadFrame(ShoalError):
    """Bytes are not what the other side should have sent."""


@dataclass(frozen=True)
class MemoryVersion:
    """A private memory, which lies at its site: the round after which it was kept, and its hex sha256."""

    round: int
    sha256: str


@dataclass(frozen=True)
class ClientAtSite:
    """From what the work of one client begins.

    Args:
        client: its id.
        message: digests of the files of the server's message.
        memory: its private memory; None: it has none.
    """

    client: int
    message: tuple[str, ...] = ()
    memory: MemoryVersion | None = None


@dataclass(frozen=True)
class SiteCall:
    """A request to a site.

    Args:
        do: what the site should do: describe its set, say whether its rules allow a run, open a run, or what
            `shoal.engine.messages.wire` calls so.
        code: digest of the lead's Shoal.
        data: name of the set.
        run: id of the run.
        round: number of the round.
        clients: clients of the site.
        groups: ids in groups, each trained in one computation.
        final: see `shoal.engine.messages.wire.Evaluate`.
        facts: JSON values by name: of `plan` the settings; of `open` settings, lineage, manifest, and numbers of
            samples of each client, by part; of `train` the plan of a sum, if there is one; else digests of files by
            purpose.
    """

    do: Literal["describe", "plan", "open", "keys", "train", "recalibrate", "evaluate", "assign", "compare"]
    code: str
    data: str = ""
    run: str = ""
    round: int = 0
    clients: tuple[ClientAtSite, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    final: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteAnswer:
    """The answer of a site.

    Args:
        error: why there is no answer; None: there is one.
        cause: the value of its `FailureCause`.
        facts: JSON values by name.
    """

    error: str | None = None
    cause: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def digest(content: bytes) -> str:
    """Return the name under which a file travels."""
    return hashlib.sha256(content).hexdigest()


def named(contents: Sequence[bytes]) -> dict[str, bytes]:
    """Return files by their digests."""
    return {digest(content): content for content in contents}


def pack(record: SiteCall | SiteAnswer, files: Files) -> bytes:
    """Return a request or an answer as bytes: the same for the same content."""
    names = sorted(files)
    entries = {"record": record_to_json(record), "files": {name: len(files[name]) for name in names}}
    text = json.dumps(entries, sort_keys=True).encode()
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *(files[name] for name in names)])


def unpack(kind: type[Record], content: bytes) -> tuple[Record, dict[str, bytes]]:
    """Return the request or the answer that `pack` made into bytes.

    Raises:
        BadFrame: the bytes are something else, or a file has another digest than its name.
    """
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or length > min(MAX_TEXT_BYTES, len(content) - LENGTH_BYTES):
        raise BadFrame(f"{len(content)} bytes arrived that are no message of Shoal")
    place = LENGTH_BYTES + length
    files = {}
    try:
        entries = json.loads(content[LENGTH_BYTES:place])
        record = record_from_json(kind, entries["record"])
        for name, size in entries["files"].items():
            files[name] = content[place : place + size]
            place += len(files[name])
    except (BadRecord, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFrame(f"a message arrived that cannot be read ({error})") from None
    if place != len(content) or any(digest(part) != name for name, part in files.items()):
        raise BadFrame("a message arrived with files that were changed on the way")
    return record, files


def plan_of(call: SiteCall) -> SumPlan | None:
    """Return the plan of the sum to which clients send their parts; None: they send whole messages."""
    return record_from_json(SumPlan, call.facts["plan"]) if "plan" in call.facts else None


def array_bytes(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """Return arrays, by group and name, as a file."""
    tensors = {
        f"{group}/{name}": torch.from_numpy(np.ascontiguousarray(array))
        for group, of_group in arrays.items()
        for name, array in of_group.items()
    }
    return tensor_bytes(tensors)


def arrays_of(content: bytes) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays that `array_bytes` made into a file.

    Raises:
        StoreError: it is another file.
    """
    groups: dict[str, dict[str, np.ndarray]] = {}
    for path, tensor in tensors_of(content, "a file of a message")[0].items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = tensor.numpy()
    return groups
