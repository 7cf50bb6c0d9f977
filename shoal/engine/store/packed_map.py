"""A map that can be changed for the price of the change, and keeps few objects however many entries it has."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import TypeVar, cast

from rpds import HashTrieMap

V = TypeVar("V")
KEYS_PER_PACK = 64
"""Neighbouring numbers whose entries are packed together."""


@dataclass(frozen=True, eq=False)
class PackedMap(Mapping[int, V]):
    """An immutable map whose entries lie packed, some in one piece of bytes; maps share the pieces they have in common.

    Hundreds of thousands of small values that a process keeps for long lie scattered among what each round makes and
    drops, and everything takes longer by it.

    Keys are numbers from 0, of which neighbours lie together; values are what JSON has, and tuples.
    """

    _packs: HashTrieMap[int, bytes] = field(default_factory=HashTrieMap)
    _count: int = 0

    @classmethod
    def from_mapping(cls, entries: Mapping[int, V]) -> PackedMap[V]:
        """Return a map of these entries."""
        packs: dict[int, dict[int, V]] = defaultdict(dict)
        for key, value in entries.items():
            packs[key // KEYS_PER_PACK][key] = value
        return cls(HashTrieMap({number: marshal.dumps(pack) for number, pack in packs.items()}), len(entries))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for pack in self.packs():
            yield from pack

    def items(self) -> ItemsView[int, V]:
        """Return keys and values; each pack is opened once."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return the values; each pack is opened once."""
        return _Values(self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and key in self._pack(key)

    def __getitem__(self, key: int) -> V:
        return self._pack(key)[key]

    def insert(self, key: int, value: V) -> PackedMap[V]:
        """Return the map with this entry, in place of one of the same key."""
        pack = self._pack(key)
        return self._with(key, {**pack, key: value}, int(key not in pack))

    def discard(self, key: int) -> PackedMap[V]:
        """Return the map without the entry of this key, where it has one."""
        pack = self._pack(key)
        if key not in pack:
            return self
        del pack[key]
        return self._with(key, pack, -1)

    def packs(self) -> Iterator[dict[int, V]]:
        """Yield the entries, one pack after another."""
        return map(marshal.loads, self._packs.values())

    def _pack(self, key: int) -> dict[int, V]:
        """Return the entries that lie with a key's."""
        packed = self._packs.get(key // KEYS_PER_PACK)
        if packed is None:
            return {}
        return cast("dict[int, V]", marshal.loads(packed))

    def _with(self, key: int, pack: dict[int, V], more: int) -> PackedMap[V]:
        """Return the map with another pack in the place of a key's."""
        number = key // KEYS_PER_PACK
        packs = self._packs.insert(number, marshal.dumps(pack)) if pack else self._packs.discard(number)
        return PackedMap(packs, self._count + more)


class _Items(ItemsView[int, V]):
    """The items of a packed map."""

    _mapping: PackedMap[V]

    def __iter__(self) -> Iterator[tuple[int, V]]:
        for pack in self._mapping.packs():
            yield from pack.items()


class _Values(ValuesView[V]):
    """The values of a packed map."""

    _mapping: PackedMap[V]

    def __iter__(self) -> Iterator[V]:
        for pack in self._mapping.packs():
            yield from pack.values()
