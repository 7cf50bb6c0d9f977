"""An immutable map for a value of each of many clients: a changed copy is cheap, and its memory is compact."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import TypeVar, cast

from rpds import HashTrieMap

V = TypeVar("V")
KEYS_PER_PACK = 64
"""Number of neighbouring keys whose entries are packed together."""


@dataclass(frozen=True, eq=False)
class PackedMap(Mapping[int, V]):
    """An immutable map that keeps the entries of neighbouring keys in one `bytes` object, a pack.

    A changed copy shares all other packs with the map. Hundreds of thousands of small objects that live for many rounds
    would scatter the heap, which makes every allocation slower.

    Keys are whole numbers from 0; values are JSON values and tuples.
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
        """Return keys and values; each pack is read once."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return the values; each pack is read once."""
        return _Values(self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int) and key in self._pack(key)

    def __getitem__(self, key: int) -> V:
        return self._pack(key)[key]

    def insert(self, key: int, value: V) -> PackedMap[V]:
        """Return the map with this entry; it replaces an entry with the same key."""
        pack = self._pack(key)
        return self._with(key, {**pack, key: value}, int(key not in pack))

    def discard(self, key: int) -> PackedMap[V]:
        """Return the map without the entry of this key, if it has one."""
        pack = self._pack(key)
        if key not in pack:
            return self
        del pack[key]
        return self._with(key, pack, -1)

    def packs(self) -> Iterator[dict[int, V]]:
        """Yield the entries, one pack after another."""
        return map(marshal.loads, self._packs.values())

    def _pack(self, key: int) -> dict[int, V]:
        """Return the entries of the pack of a key."""
        packed = self._packs.get(key // KEYS_PER_PACK)
        if packed is None:
            return {}
        return cast("dict[int, V]", marshal.loads(packed))

    def _with(self, key: int, pack: dict[int, V], added: int) -> PackedMap[V]:
        """Return the map with another pack for a key, which has `added` more entries."""
        number = key // KEYS_PER_PACK
        packs = self._packs.insert(number, marshal.dumps(pack)) if pack else self._packs.discard(number)
        return PackedMap(packs, self._count + added)


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
