"""What a cell of NVFlare takes from the network (bytes of its peer, for itself), and when a site is there."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.message import Message

from shoal.engine.sites import cells

KEYS = (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, MessageHeaderKey.PAYLOAD_ENCODING)


@pytest.mark.parametrize(
    ("headers", "peer", "taken"),
    [
        (("server", "north", Encoding.BYTES), "server", True),
        (("server", "north", Encoding.FOBS), "server", False),
        (("south", "north", Encoding.BYTES), "server", False),
        (("south", "north", Encoding.BYTES), "south", False),
        (("server", "south", Encoding.BYTES), "server", False),
    ],
)
def test_a_site_takes_bytes_of_the_server_alone(
    headers: Any, peer: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mock.Mock()
    monkeypatch.setattr(cells, "Cell", made)
    cells.open_cell("north", "", {}, "")
    filtered = made().core_cell.add_incoming_filter.call_args.kwargs
    assert (filtered["channel"], filtered["topic"]) == ("*", "*")
    message = Message(dict(zip(KEYS, headers, strict=True)))
    message.set_prop(MessagePropKey.ENDPOINT, SimpleNamespace(name=peer))
    assert (filtered["cb"](message) is None) == taken


def test_a_site_whose_connection_ended_is_there_once_it_says_so() -> None:
    """A request to a process that has only connected would be lost."""
    cell = object.__new__(cells.ServerCell)
    cell._heard = {"north": time.monotonic()}
    cell._gone = {}
    cell._cell = SimpleNamespace(core_cell=SimpleNamespace(is_cell_connected=lambda _: True))  # connected again
    assert cell.connected("north")
    cell._lost(SimpleNamespace(get_fqcn=lambda: "north"))
    assert not cell.connected("north")


@pytest.mark.parametrize(("began", "ended"), [("1", False), ("2", True)])
def test_a_request_ends_where_another_process_of_its_site_speaks(began: str, ended: bool) -> None:
    cell = object.__new__(cells.ServerCell)
    cell._heard = {}
    cell._told = {}
    cell._began = {"north": "1"}
    cell._gone = {"north": Signal()}
    told = json.dumps({"code": "", "torch": "", "began": began}).encode()
    cell._hear(Message({MessageHeaderKey.ORIGIN: "north"}, told))
    assert cell._gone["north"].triggered == ended
    assert "north" in cell._heard
