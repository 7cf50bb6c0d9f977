"""Local steps as CUDA graphs: captured once, the same bits as plain ones, refused where they cannot be captured.

There is no GPU here: a recording of the operations, repeated on the same tensors, stands for the graph.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import SettingsError, make_settings
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Client, Message, MethodError, Tensors, Update
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores import probe
from shoal.methods.training import graphs, kept_steps
from shoal.methods.training.graphs import GraphPool, capture
from shoal.methods.training.kept_steps import WARM_UP_STEPS, KeptSteps, StepKeeper, StepRules
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.steps import GradientMethod
from tests.methods.training.recorded_graph import Recorder
from tests.pretend_gpu.cases import CASES, settings_of, write_sets
from tests.pretend_gpu.running import run_there
from tests.runs import numbers, straight

CPU = torch.device("cpu")
ON = {"workers": {"graphs": "on", "batched": 1}}
MANY_STEPS: dict[str, Any] = {"local": {"epochs": 6, "batch": 6}, "workers": {"batched": 1}}
"""At least six steps a client: twelve on batches of 6 of 16 samples, and where it is kept a last one of 4 an epoch."""
STEPPED = [
    name
    for name in CASES
    if issubclass(METHODS[name.split(",")[0]], GradientMethod)
    and name.split(", ")[0] != "fedavg"
    and "text" not in name
] + ["fedavg"]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(kept_steps, "capture", found.capture)
    return found


@pytest.fixture
def sets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STRENGTHS", (1.0,))
    write_sets()


def longer(name: str) -> dict[str, Any]:
    """What gives every client of a case more steps than are taken plainly at first."""
    return {"method": {"steps": 8, "tau_a": 8, "tau_p": 8}} if name.startswith("cfcl") else MANY_STEPS


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "," in name else name for name in STEPPED]
)
def test_repeated_steps_have_the_bits_of_plain_ones(
    sets: None, recorder: Recorder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("ssd"):  # with a smaller last batch
        monkeypatch.setattr("shoal.methods.ssd.self_supervised.FEW_CLIENTS", 0)
    reference = straight(settings_of(name, changed=longer(name)))
    assert not recorder.captured
    repeated = straight(settings_of(name, changed=merge(longer(name), ON)))
    assert recorder.captured >= 1
    assert recorder.repeated > 4 * recorder.captured, "one capture serves clients and rounds"
    assert numbers(repeated) == numbers(reference)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedpnp", "fedbyol", "cfcl", "cfl"])
def test_steps_from_buffers_on_the_pretend_device(sets: None, name: str) -> None:
    """Nothing is captured there; the steps are called in the same way, and the host waits no more often."""
    reference, one = run_there(settings_of(name, changed=longer(name)))
    there, other = run_there(settings_of(name, changed=merge(longer(name), ON)))
    assert numbers(there) == numbers(reference)
    assert other.training.waits.total() == one.training.waits.total()
    assert other.training.operations != one.training.operations, "samples come from a buffer"


def test_a_run_with_graphs_is_the_same_run() -> None:
    assert settings_of("fedpnp", changed=ON).digest() == settings_of("fedpnp").digest()


def test_not_together_with_what_computes_otherwise() -> None:
    with pytest.raises(SettingsError, match=r"workers\.graphs=on and workers\.batched exclude each other"):
        make_settings({"method": {"name": "fedpnp"}, "workers": {"graphs": "on", "batched": 2}})


@pytest.mark.parametrize("name", ["kmeans", "ncc", "uifca", "clustergan", "kfed", "cfl, text"])
def test_what_cannot_be_captured_is_refused_before_any_work(sets: None, name: str) -> None:
    with pytest.raises(MethodError, match=r"workers\.graphs is for local work that is gradient steps"):
        new_run(settings_of(name, changed=ON))


# --- the step itself -------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A network of one weight, which the loss is."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]))


class Fixture:
    """Clients with one weight, whose step is worth weight times position, plus what `draw` gives."""

    def __init__(self, draw: Callable[[torch.Generator], Tensor] | None = None, *, momentum: float = 0.0) -> None:
        self.draw, self.calls = draw, 0

        def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, 0.5, momentum=momentum)

        self.rules = StepRules(self.loss, lambda parameters, companions: None, sgd, CPU, required=True)

    def loss(self, model: Any, parameters: Tensors, batch: Any, extra: Tensors) -> Any:
        self.calls += 1
        drawn = batch[1].sum() if len(batch) > 1 else torch.zeros(())
        return (parameters["weight"] * batch[0].sum()).sum() + drawn, {}

    def steps(self, weight: float, batches: list[list[int]], seed: int = 0) -> LocalSteps:
        generator = torch.Generator().manual_seed(seed)
        client: Any = Client(0, None, None, {}, (), Streams(0))  # type: ignore[arg-type]

        def inputs(batch: Any) -> Any:
            return batch if self.draw is None else (*batch, self.draw(generator))

        return LocalSteps(
            client,
            Counting(weight),
            [torch.tensor(batch) for batch in batches],
            lambda positions: (positions.float(),),
            inputs,
            lambda taken: Update(Message()),
            generators=(generator,),
        )


def taken(kept: KeptSteps, steps: LocalSteps) -> tuple[float, float]:
    sums, _, _ = kept.take(steps)
    return float(sums["loss"]), float(steps.network.weight.detach())


def plainly(weight: float, batches: list[list[int]], momentum: float = 0.0) -> tuple[float, float]:
    total, velocity = 0.0, 0.0
    for batch in batches:
        total += weight * sum(batch)
        velocity = momentum * velocity + sum(batch)
        weight -= 0.5 * velocity
    return total, weight


def test_a_step_is_captured_once_for_all_clients(recorder: Recorder) -> None:
    fixture = Fixture(momentum=0.5)
    first = fixture.steps(1.0, [[1, 2], [0, 1], [3, 1], [2, 2], [1, 1]])
    kept = KeptSteps(first, fixture.rules)
    assert taken(kept, first) == plainly(1.0, [[1, 2], [0, 1], [3, 1], [2, 2], [1, 1]], 0.5)
    assert fixture.calls == WARM_UP_STEPS + 1
    for weight in (2.0, -1.0):
        batches = [[1, 1], [2, 0], [0, 4]]
        assert taken(kept, fixture.steps(weight, batches)) == plainly(weight, batches, 0.5)
    assert fixture.calls == WARM_UP_STEPS + 1
    assert (recorder.captured, recorder.repeated) == (1, 2 + 6)


def test_a_smaller_last_batch_has_a_graph_of_its_own(recorder: Recorder) -> None:
    fixture = Fixture()
    batches = [[1, 2], [2, 1], [3]] * 5
    first = fixture.steps(1.0, batches)
    kept = KeptSteps(first, fixture.rules)
    assert taken(kept, first) == plainly(1.0, batches)
    assert recorder.captured == 2
    assert taken(kept, fixture.steps(3.0, batches)) == plainly(3.0, batches)
    assert recorder.captured == 2


def test_samples_come_in_stretches(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_steps, "STRETCH_STEPS", 3)
    fixture = Fixture()
    batches = [[n, 1] for n in range(8)]
    first = fixture.steps(1.0, batches)
    assert taken(KeptSteps(first, fixture.rules), first) == plainly(1.0, batches)
    assert recorder.repeated == 8 - WARM_UP_STEPS


@pytest.mark.parametrize(("steps", "captured"), [(15, 0), (40, 1)])
def test_by_default_a_first_client_is_captured_where_it_pays(recorder: Recorder, steps: int, captured: int) -> None:
    fixture = Fixture()
    rules = replace(fixture.rules, required=False)
    first = fixture.steps(1.0, [[1, 1]] * steps)
    kept = KeptSteps(first, rules)
    kept.take(first)
    assert recorder.captured == captured
    kept.take(fixture.steps(1.0, [[1, 1]]))
    assert recorder.captured == 1, "a second client says that more may come"


def test_what_cannot_be_captured_is_taken_plainly_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MethodError("workers.graphs: no; set workers.graphs=off")

    monkeypatch.setattr(kept_steps, "capture", refuse)
    fixture = Fixture()
    batches = [[n, 2] for n in range(30)]
    first = fixture.steps(1.0, batches)
    kept = KeptSteps(first, replace(fixture.rules, required=False))
    with pytest.warns(RuntimeWarning, match=r"workers\.graphs.*taken without it"):
        assert taken(kept, first) == plainly(1.0, batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken(kept, fixture.steps(2.0, batches)) == plainly(2.0, batches)
    with pytest.raises(MethodError, match=r"set workers\.graphs=off"):
        KeptSteps(first := fixture.steps(1.0, batches), fixture.rules).take(first)


def test_generators_go_on_as_in_plain_steps(recorder: Recorder) -> None:
    fixture = Fixture(lambda generator: torch.rand(4, generator=generator))
    kept, found = None, []
    for seed in (3, 4):
        steps = fixture.steps(0.0, [[0, 0]] * 9, seed)
        kept = kept or KeptSteps(steps, fixture.rules)
        found.append(taken(kept, steps)[0])
        generator = torch.Generator().manual_seed(seed)
        drawn = sum(torch.rand(4, generator=generator).sum() for _ in range(9))
        assert found[-1] == pytest.approx(float(drawn))
        assert torch.equal(steps.generators[0].get_state(), generator.get_state())
    assert recorder.captured == 1
    assert found[0] != found[1]


def test_the_recording_repeats_wrongly_what_a_graph_would(recorder: Recorder) -> None:
    """So the test of all methods would see a number that a step takes from Python."""
    rising = iter(range(100))
    fixture = Fixture(lambda generator: torch.zeros(1) + next(rising))
    steps = fixture.steps(0.0, [[0, 0]] * 6)
    assert taken(KeptSteps(steps, fixture.rules), steps)[0] == 0 + 1 + 2 + 3 + 3 + 3


@pytest.mark.parametrize("looks", [True, False])
def test_the_recording_refuses_what_a_graph_would(recorder: Recorder, looks: bool) -> None:
    other = torch.Generator()

    def draw(own: torch.Generator) -> Tensor:
        found = torch.rand(2, generator=own if looks else other)
        return found * (float(found[0]) if looks else 1.0)

    fixture = Fixture(draw)
    steps = fixture.steps(0.0, [[0, 0]] * 6)
    with pytest.raises(RuntimeError, match="looks at a value" if looks else "does not know"):
        KeptSteps(steps, fixture.rules).take(steps)


def test_a_client_without_steps_has_no_numbers() -> None:
    fixture = Fixture()
    kept = KeptSteps(fixture.steps(1.0, []), fixture.rules)
    assert kept.take(fixture.steps(1.0, [])) == ({}, 0, {})
    kept.take(fixture.steps(1.0, [[1]]))
    assert kept.take(fixture.steps(1.0, [])) == ({}, 0, {})


def test_kinds_are_kept_apart_and_the_oldest_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_steps, "MAX_KINDS", 2)
    keeper, fixture = StepKeeper(), Fixture()
    slow = replace(fixture.rules, optimiser=lambda parameters: torch.optim.SGD(parameters, 0.1))
    first = keeper.kept(fixture.steps(1.0, []), fixture.rules)
    assert keeper.kept(fixture.steps(2.0, []), fixture.rules) is first
    other = keeper.kept(fixture.steps(1.0, []), slow)
    assert other is not first
    keeper.kept(replace(fixture.steps(1.0, []), alike="pool"), fixture.rules)
    assert keeper.kept(fixture.steps(1.0, []), fixture.rules) is not first


class PretendGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self.replayed = 0

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        self.replayed += 1


def cuda(patch: pytest.MonkeyPatch) -> list[PretendGraph]:
    """torch's graphs, replaced; those that were made."""
    made: list[PretendGraph] = []

    def graph() -> PretendGraph:
        made.append(PretendGraph())
        return made[-1]

    @contextlib.contextmanager
    def capturing(graph: PretendGraph, pool: Any, capture_error_mode: str) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("a pool", "thread_local")
        yield

    there = SimpleNamespace(
        CUDAGraph=graph,
        graph=capturing,
        graph_pool_handle=lambda: "a pool",
        default_generators=[torch.Generator()],
        current_device=lambda: 0,
    )
    patch.setattr(graphs.torch, "cuda", there)
    return made


def test_on_cuda_one_graph_is_made_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, generators, calls = cuda(monkeypatch), (torch.Generator(), torch.Generator()), []
    replay = capture(lambda: calls.append(1), generators, torch.device("cuda"), GraphPool())
    (graph,) = made
    assert graph.generators == list(generators)
    for _ in range(3):
        replay()
    assert (len(calls), graph.replayed) == (1, 3)


def test_what_torch_cannot_capture_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch)
    restored: list[torch.Generator] = []
    monkeypatch.setattr(graphs, "_restore", lambda generator, state, device: restored.append(generator))
    pool, own = GraphPool(), torch.Generator()
    assert pool.handle() == "a pool"

    def work() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(MethodError, match=r"not permitted.*set workers\.graphs=off"):
        capture(work, (own,), torch.device("cuda"), pool)
    assert restored[0] is own, "it waits for the end of a capture that will not come"
    assert pool._handle is None, "nothing more can be captured into that memory"
