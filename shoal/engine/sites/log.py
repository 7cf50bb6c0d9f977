"""The log of what left a site: a line for each answer, which holds the digest of the line before it.

    log.jsonl      time, do, run, round, method, facts, files, bytes, sha256, refused, before
    log-end.json   number of lines, digest of the last and bytes of all, written after it: so that missing ones show

A line is on the disk before the answer leaves. It has the names of the answer's numbers, and names, types and shapes
of its arrays, and no value of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import deserialize

from shoal.core.errors import FailureCause, ShoalError
from shoal.core.private_file import owner_only
from shoal.engine.sites.frames import SiteAnswer, SiteCall, digest, unpack
from shoal.engine.store.codec import PRIVATE, read_sealed, write_sealed

EMPTY: dict[str, Any] = {"lines": 0, "last": "", "bytes": 0}


class LogError(ShoalError):
    """A line of the log is missing or changed."""

    failure_cause = FailureCause.SITE_REFUSES


@dataclass(frozen=True)
class SiteLog:
    """The log of a site.

    Args:
        folder: of its files, which exists.
    """

    folder: Path

    @property
    def path(self) -> Path:
        """The file of the lines."""
        return self.folder / "log.jsonl"

    @property
    def end_path(self) -> Path:
        """The file with the end of the log."""
        return self.folder / "log-end.json"

    def append(self, call: SiteCall | None, method: str, answer: bytes) -> dict[str, Any]:
        """Add the line of an answer, and return it.

        Args:
            call: the request; None: it could not be read.
            method: of its run; empty without one.
            answer: all of its bytes.

        Raises:
            LogError, StoreError: the log is damaged, or cannot be written. OSError: it cannot be written.
        """
        end = self.known_end()
        if end["bytes"] != self.size():
            end = self.compared()[1]  # killed between the line and the end
        asked = ("", "", 0) if call is None else (call.do, call.run, call.round)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            **dict(zip(("do", "run", "round"), asked, strict=True)),
            "method": method,
            **contents(answer),
            "before": end["last"],
        }
        line = json.dumps(entry).encode()
        with open(self.path, "ab", opener=owner_only) as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        end = {"lines": end["lines"] + 1, "last": digest(line), "bytes": end["bytes"] + len(line) + 1}
        write_sealed(self.end_path, end, mode=PRIVATE)
        return entry

    def entries(self) -> list[dict[str, Any]]:
        """Return the lines, the oldest first, after comparing each with the one before it.

        Raises:
            LogError: names the first line that is missing or changed. StoreError: the file of the end is damaged.
        """
        return self.compared()[0]

    def known_end(self) -> Mapping[str, Any]:
        """Return the end as it was written last."""
        if not self.end_path.exists():
            return EMPTY
        return read_sealed(self.end_path)

    def size(self) -> int:
        """Return the bytes of the log."""
        if not self.path.exists():
            return 0
        return self.path.stat().st_size

    def compared(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the lines and the end that they have; errors as of `entries`."""
        known = self.known_end()
        lines = []
        if self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
        entries = []
        end = EMPTY
        for line in lines:
            number = end["lines"] + 1
            try:
                entry = json.loads(line)
                follows = entry["before"] == end["last"] and line.endswith(b"\n")
            except (ValueError, KeyError, TypeError):
                follows = False
            if not follows:
                raise self.damaged(f"line {number}, or the one before it, is missing or changed")
            entries.append(entry)
            end = {"lines": number, "last": digest(line[:-1]), "bytes": end["bytes"] + len(line)}
            if number == known["lines"] and end["last"] != known["last"]:
                raise self.damaged(f"line {number} is changed")
        if end["lines"] < known["lines"]:
            raise self.damaged(f"it has {end['lines']} lines, expected {known['lines']}")
        return entries, end

    def damaged(self, what: str) -> LogError:
        """Return the error of a damaged log."""
        return LogError(
            f"the log of what left the site, {self.path}, is damaged: {what}. The site answers nothing until you have "
            f"moved it and {self.end_path.name} to another place"
        )


def contents(answer: bytes) -> dict[str, Any]:
    """Return what an answer holds, as a line of the log has it."""
    record, files = unpack(SiteAnswer, answer)
    inner_of = {name: value if isinstance(value, Mapping) else [""] for name, value in record.facts.items()}
    names = [f"{name}.{inner}" for name, inners in inner_of.items() for inner in inners]
    about = [{"sha256": name, "bytes": len(content), "arrays": arrays(content)} for name, content in files.items()]
    return {"refused": record.error, "facts": names, "files": about, "bytes": len(answer), "sha256": digest(answer)}


def arrays(content: bytes) -> dict[str, list[Any]]:
    """Return type and shape of each array of a safetensors file, by name."""
    return {name: [about["dtype"], *about["shape"]] for name, about in deserialize(content)}  # type: ignore[no-untyped-call]
