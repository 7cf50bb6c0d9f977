"""What a process of many clients keeps: the same answers as a dictionary, in few places."""

from __future__ import annotations

import gc
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.store.client_seconds import ClientSeconds
from shoal.engine.store.memory_index import IndexChange, MemoryIndex
from shoal.engine.store.packed_map import PackedMap

VALUES = st.one_of(st.none(), st.text(max_size=5), st.tuples(st.text(max_size=2)), st.just({"a": "b"}))


@given(st.lists(st.tuples(st.integers(0, 200), VALUES)))
def test_a_packed_map_holds_what_a_dictionary_holds(steps: list[tuple[int, object]]) -> None:
    """None takes a key out; every map on the way stays as it was."""
    mapping: dict[int, object] = {}
    packed: PackedMap[object] = PackedMap()
    passed = [(dict(mapping), packed)]
    for key, value in steps:
        if value is None:
            mapping.pop(key, None)
            packed = packed.discard(key)
        else:
            mapping[key] = value
            packed = packed.insert(key, value)
        passed.append((dict(mapping), packed))
    for before, packed_map in passed:
        assert packed_map == before == dict(packed_map.items())
        assert len(packed_map) == len(before)
        assert set(packed_map) == set(before)
        assert sorted(map(str, packed_map.values())) == sorted(map(str, before.values()))
        assert all(key in packed_map and packed_map[key] == before[key] for key in before)
        assert PackedMap.from_mapping(before) == packed_map
    assert pickle.loads(pickle.dumps(packed)) == packed


def test_what_is_not_there_is_not_found() -> None:
    packed = PackedMap.from_mapping({3: "three"})
    assert 4 not in packed
    assert packed.get(4) is None
    assert packed.discard(4) is packed
    assert not PackedMap()


def blocks() -> int:
    """Small objects that live in this process."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.long
def test_thousands_of_clients_are_not_thousands_of_objects() -> None:
    clients, round = 20_000, 100
    blocks()
    before = blocks()
    index, seconds = MemoryIndex(), ClientSeconds()
    for first in range(0, clients, round):
        memory = {client: f"memory/0/{client}/{first:04d}.safetensors" for client in range(first, first + round)}
        sha256 = {path: f"{client:064x}" for client, path in memory.items()}
        index = index.after(IndexChange(tuple(memory), memory, {}, sha256))
        for client in memory:
            seconds[client] = client / 7
    del memory, sha256
    kept = blocks() - before
    assert len(index.memory) == len(index.sha256) == len(seconds) == clients
    assert index.client_digests(19_999) == {"memory/0/19999/19900.safetensors": f"{19_999:064x}"}
    assert seconds.get(19_999) == 19_999 / 7
    assert kept < clients / 10, "dictionaries keep six and more for every client"


@given(st.dictionaries(st.integers(0, 300), st.floats(allow_nan=False)), st.lists(st.integers(0, 400)))
def test_a_number_by_client(numbers: dict[int, float], asked: list[int]) -> None:
    packed_map = ClientSeconds()
    for client, number in numbers.items():
        packed_map[client] = number + 1
        packed_map[client] = number
    assert len(packed_map) == len(numbers)
    assert bool(packed_map) == bool(numbers)
    assert [packed_map.get(client) for client in asked] == [numbers.get(client) for client in asked]
    assert [client in packed_map for client in asked] == [client in numbers for client in asked]
