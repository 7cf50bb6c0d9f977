"""The policy of a site, which its agent alone reads: what it does not name is refused.

A refusal names each key of the policy that forbids it, and what the lead asks; what the policy allows it does not tell,
but for the least group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from shoal.core.errors import FailureCause, ShoalError
from shoal.core.setting import setting
from shoal.engine.messages.wire import SumPlan
from shoal.engine.settings.run_settings import Settings, with_nulls
from shoal.engine.settings.wrong_settings import explain
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.engine.sites.frames import SiteCall
from shoal.engine.store.codec import PRIVATE, write_atomic
from shoal.methods.registry import METHODS

AUTO = "auto"
"""Among the methods of a policy: the site tells what `method.name: auto` asks about the columns of its sets."""
Asked = Iterator[tuple[str, str]]
"""Keys of a policy that forbid a request, each with what the lead asks."""


class PolicyError(ShoalError):
    """The policy of a site is missing or wrong: nothing is allowed."""

    failure_cause = FailureCause.SITE_REFUSES


@dataclass(frozen=True)
class Policy:
    """What a lead may ask of a site. Samples never go to other clients, whatever stands here."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    data: tuple[str, ...] = setting((), "names of the sets that runs may use")
    methods: tuple[str, ...] = setting(
        (), "names of the methods that may run; auto: the spread of columns may be told, by which the lead chooses"
    )
    code: tuple[str, ...] = setting((), "digests of the Shoal that may run here, as `shoal site policy` prints it")
    min_samples: int = setting(50, "least number of training samples of each of the site's clients in a run", ge=1)
    min_group: int = setting(5, "least number of samples in a mean, a sum or a cell of a table that leaves", ge=1)
    clip: float | None = setting(1.0, "privacy.clip of a run is at most this; none: it may be unset", gt=0)
    noise: float = setting(1.0, "privacy.noise of a run is at least this; 0: it may be 0", ge=0)
    unit: Literal["client", "row"] = setting("client", "what that noise hides at least: all of a client, or a row")
    epsilon: float | None = setting(
        20.0, "privacy budget of updates on a set, at delta 1e-5, by the ledger of this site; none: no budget", gt=0
    )
    masked: bool = setting(True, "whether runs need privacy.sums=masked: the lead then reads no single message")
    keys: dict[str, str] = setting({}, "public key of each other site whose masks count, as that site prints it")
    rounds_a_day: int = setting(200, "most rounds in which the site trains on one day (UTC)", ge=1)
    watch: dict[str, str] = setting(
        {}, "folder of new samples of a set, by its name: as of night.watch, they are added when the lead asks for it"
    )
    approve: Literal["ask", "all"] = setting(
        "ask", "ask: a new run waits for `shoal site approve RUN`; all: what the policy allows runs at once"
    )


def read_policy(path: Path) -> Policy:
    """Return the policy of a site.

    Raises:
        PolicyError: it is missing, or names each wrong key, its value and what is allowed.
    """
    raw = read_yaml_file(path, "policy", PolicyError, "base") or {}
    if not isinstance(raw, dict):
        raise PolicyError(f"policy {path} holds a {type(raw).__name__}, expected keys and values")
    try:
        policy = TypeAdapter(Policy).validate_python(with_nulls(raw, Policy))
    except ValidationError as error:
        raise PolicyError(f"policy {path}: " + "\n".join(explain(raw, error.errors(), Policy))) from None
    if unknown := set(policy.methods) - {AUTO, *METHODS}:
        raise PolicyError(f"policy {path}: methods: no method is {min(unknown)!r}: `shoal run --methods` lists them")
    return policy


def forbidden(policy: Policy, call: SiteCall) -> Asked:
    """Yield what a policy forbids of a request without its run."""
    if call.data not in policy.data:
        yield "data", f"data.name={call.data}"
    if call.code not in policy.code:
        yield "code", f"Shoal {call.code}"


def forbidden_of_run(policy: Policy, settings: Settings, samples: int) -> Asked:
    """Yield what a policy forbids of a run.

    Args:
        policy: of the site.
        settings: of the run.
        samples: training samples of the site's smallest client in it.
    """
    name = settings.method.name
    group = policy.min_group
    privacy = settings.privacy
    least = getattr(settings.method, "min_points", group)
    clipped = policy.clip is None or (privacy.clip is not None and privacy.clip <= policy.clip)
    masked = privacy.sums == "masked"
    hidden = not policy.noise or policy.unit == "row" or privacy.unit == "client"
    rules = (
        ("data", settings.data.name in policy.data, f"data.name={settings.data.name}"),
        ("methods", name in policy.methods, f"method.name={name}"),
        ("min_samples", samples >= policy.min_samples, f"work of a client of {samples} samples"),
        ("min_group", least >= group, f"method.min_points={least} (--set method.min_points={group} is allowed)"),
        ("clip", clipped, f"privacy.clip={privacy.clip or 'none'}"),
        ("noise", privacy.noise >= policy.noise, f"privacy.noise={privacy.noise:g}"),
        ("unit", hidden, f"privacy.unit={privacy.unit}"),
        ("epsilon", policy.epsilon is None or privacy.secret, "updates without noise, which have no epsilon"),
        ("masked", masked or not policy.masked, f"privacy.sums={privacy.sums}"),
        ("keys", len(policy.keys) > 1 or not (masked and policy.masked), "masks of sites whose keys it does not name"),
    )
    for key, allowed, asked in rules:
        if not allowed:
            yield key, asked


def forbidden_of_sum(policy: Policy, plan: SumPlan | None, own_key: str) -> Asked:
    """Yield what a policy that needs masks forbids of the plan of a sum; `own_key` is the site's public key."""
    keys = plan.keys if plan is not None else None
    if not policy.masked:
        return
    if keys is None:
        yield "masked", "a message without masks"
        return
    for key in set(keys) - {own_key, *policy.keys.values()}:
        yield "keys", f"masks with the key {key}"
    if set(keys) <= {own_key}:
        yield "keys", "masks of no other site"


def write_strict_policy(path: Path) -> None:
    """Write the policy that allows no run yet, with the meaning of each key."""
    lines = []
    strict = Policy()
    for item in fields(Policy):
        value = getattr(strict, item.name)
        text = json.dumps(list(value) if isinstance(value, tuple) else value)
        lines += [f"# {item.metadata['description']}", f"{item.name}: {text}"]
    write_atomic(path, ("\n".join(lines) + "\n").encode(), mode=PRIVATE)
