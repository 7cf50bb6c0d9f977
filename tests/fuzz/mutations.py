"""Broken inputs from whole ones: bytes that are cut, flipped and spliced, and values of another kind where a value was.

Input number i of a reader follows from the seed, the reader's name and i alone, so that each can be made again.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

TOKENS = [
    *(b"\xff\xfe", b"\x00", "²".encode(), "٣".encode(), b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r"),
    *(b"2020-01-01", b"12:30:59", b"1: ", b"- ", b"[", b"{", b"]", b"}", b": ", b", ", b"\n", b"\n  ", b"\t", b'"'),
    *(b"'", b"&a ", b"*a", b"<<: *a", b"!!binary ", b"!!python/name:os.system ", b"? ", b"| ", b"---\n", b"#"),
    *(b"null", b"true", b"nan", b".inf", b"1e999", b"-1", b"0x1f", b"0b_", b"999999999999999999999", b"9" * 5000),
    *(
        b"${HOME}",
        b"http://me:word@host/",
        b"../../x",
        b"\x80\x02",
        b"\x1f\x8b",
        b"\xfd7zXZ\x00",
        b"PAR1",
        b"\x93NUMPY",
    ),
    *(b"\xff" * 8, b"\x00" * 64, b"\x7f\xff\xff\xff", b"1" * 40, b"a" * 300, b"[" * 200, b"{a: " * 60, b"[" * 5000),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        1.5,
        -0.0,
        1e308,
        float("inf"),
        float("nan"),
        10**30,
        2**63,
        2**31,
        10**400,
        -(2**63) - 1,
    ),
    *("", "x", "²", "2020-01-01", "../../x", "\x00", "\ud800", "9" * 5000, "http://me:word@host/x", "${HOME}", "a\nb"),
    *(
        [],
        {},
        [[]],
        [None],
        {"a": 1},
        {"": {}},
        [1, "a", None],
        [[[[[[[[1]]]]]]]],
        {"x": {"y": {"z": []}}},
        "on",
        "1e3",
    ),
]


def mutated(seeds: list[bytes], rng: random.Random, structured: bool) -> bytes:
    """An input: one to four changes of a seed; of text with structure every other one changes its values.

    Args:
        seeds: whole inputs.
        rng: draws everything.
        structured: whether seeds are JSON.
    """
    data = rng.choice(seeds)
    if structured and rng.random() < 0.5:
        data = with_other_values(data, rng)
        if rng.random() < 0.8:
            return data
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(CHANGES)(data, rng, seeds)
    return data


def with_other_values(data: bytes, rng: random.Random) -> bytes:
    """JSON with some values replaced, taken out, or put under other keys."""
    root = [json.loads(data)]
    for _ in range(rng.randint(1, 3)):
        place: Any = root
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            inner = place[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
                place = inner
                continue
            action = rng.random()
            if action < 0.8 or place is root:
                place[key] = copy.deepcopy(rng.choice(VALUES))
            elif isinstance(place, dict):
                value = place.pop(key)
                if action < 0.9:
                    place[str(rng.choice(VALUES))[:50]] = value
            else:
                place.append(copy.deepcopy(rng.choice(VALUES)))
            break
    return json.dumps(root[0]).encode("utf-8", "surrogatepass")


def _cut(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _flip(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _flip_early(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 2, 4)) if found else 0):
        found[rng.randrange(min(len(found), 64))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(found)


def _flip_late(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    return data[:-300] + _flip(data[-300:], rng, seeds)


def _insert(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _replace(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at, token = rng.randint(0, len(data)), rng.choice(TOKENS)
    return data[:at] + token + data[at + rng.choice((1, len(token))) :]


def _drop(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def _repeat(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    part = data[at : at + rng.randint(1, 60)]
    return data[:at] + part * rng.choice((2, 3, 50)) + data[at:]


def _splice(data: bytes, rng: random.Random, seeds: list[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


CHANGES = (_cut, _flip, _flip, _flip_early, _flip_late, _insert, _insert, _replace, _drop, _repeat, _splice)
