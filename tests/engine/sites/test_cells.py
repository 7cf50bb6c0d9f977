"""What a cell of NVFlare takes from the network: bytes of its peer, for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.message import Message

from shoal.engine.sites import cells


@pytest.mark.parametrize(
    ("origin", "destination", "peer", "coding", "taken"),
    [
        ("server", "north", "server", Encoding.BYTES, True),
        ("server", "north", "server", Encoding.FOBS, False),
        ("south", "north", "server", Encoding.BYTES, False),
        ("south", "north", "south", Encoding.BYTES, False),
        ("server", "south", "server", Encoding.BYTES, False),
    ],
)
def test_a_site_takes_bytes_of_the_server_alone(
    origin: str, destination: str, peer: str, coding: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters: list[Any] = []
    core = SimpleNamespace(add_incoming_filter=lambda channel, topic, cb: filters.append((channel, topic, cb)))
    monkeypatch.setattr(cells, "Cell", lambda **_: SimpleNamespace(core_cell=core))
    cells.open_cell("north", "", {}, "")
    ((channel, topic, refuse),) = filters
    assert (channel, topic) == ("*", "*")
    keys = (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, MessageHeaderKey.PAYLOAD_ENCODING)
    message = Message(dict(zip(keys, (origin, destination, coding), strict=True)))
    message.set_prop(MessagePropKey.ENDPOINT, SimpleNamespace(name=peer))
    assert (refuse(message) is None) == taken
