"""A site of a test: a process of its own, with its own home, that answers over its standard input and output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

LENGTH_BYTES = 8


def send(pipe: BinaryIO, content: bytes) -> None:
    pipe.write(len(content).to_bytes(LENGTH_BYTES, "little"))
    pipe.write(content)
    pipe.flush()


def receive(pipe: BinaryIO) -> bytes:
    """The next bytes that `send` wrote.

    Raises:
        EOFError: the other side is gone.
    """
    length = pipe.read(LENGTH_BYTES)
    content = pipe.read(int.from_bytes(length, "little"))
    if len(length) < LENGTH_BYTES or len(content) < int.from_bytes(length, "little"):
        raise EOFError
    return content


def keep_within(home: Path) -> None:
    """Have this process fail where it opens, lists or links a file of another home, which lies beside its own."""

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.link", "os.rename"):
            for path in arguments[:2]:
                if isinstance(path, str) and path.startswith(f"{home.parent}/") and not path.startswith(str(home)):
                    raise PermissionError(f"{path} belongs to another site")

    sys.addaudithook(watch)


def serve(name: str, home: Path) -> None:
    """Answer until the lead is gone; a file `refuse` in the home names what is refused."""
    keep_within(home)
    from shoal.engine.settings.run_settings import Settings
    from shoal.engine.sites.agent import SiteAgent
    from shoal.engine.sites.frames import SiteCall

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer

    def rules(call: SiteCall, settings: Settings | None) -> str | None:
        refused = home / "refuse"
        return f"no {call.do} at night" if refused.exists() and refused.read_text() == call.do else None

    agent = SiteAgent(name, home / "data" / "store", home / "runs", rules)
    while True:
        try:
            content = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(answers, agent.answer(content))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
