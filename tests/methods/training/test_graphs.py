"""Local steps as CUDA graphs: taken from buffers, the same bits as plain ones, refused where they cannot be captured.

There is no GPU here: a recording of the operations, repeated on the same tensors, stands for the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.merge import merge
from engine.settings import SettingsError, make_settings
from methods.base import MethodError, Tensors
from methods.registry import METHODS
from methods.scores import probe
from methods.training import graphs
from methods.training.graphs import WARM_UP, RepeatedStep, capture
from methods.training.local import run_steps
from methods.training.steps import GradientMethod
from tasks.starting import new_run
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
] + ["fedavg", "fedavg, labels"]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(graphs, "capture", found.capture)
    return found


@pytest.fixture
def sets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STRENGTHS", (1.0,))
    write_sets()


def longer(name: str) -> dict[str, Any]:
    """What gives every client of a case more steps than are taken plainly at first."""
    many = {"method": {"steps": 8, "tau_a": 8, "tau_p": 8}} if name.startswith("cfcl") else MANY_STEPS
    return merge(many, {"method": {"last_batch": "keep"}}) if name.startswith("ssd") else many


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "," in name else name for name in STEPPED]
)
def test_repeated_steps_have_the_bits_of_plain_ones(sets: None, recorder: Recorder, name: str) -> None:
    plain = straight(settings_of(name, changed=longer(name)))
    assert not recorder.captured
    repeated = straight(settings_of(name, changed=merge(longer(name), ON)))
    assert recorder.captured > 1
    assert recorder.repeated > 2 * recorder.captured
    assert numbers(repeated) == numbers(plain)


@pytest.mark.parametrize("name", ["fedpnp", "fedbyol", "cfcl", "cfl"])
def test_steps_from_buffers_on_the_pretend_device(sets: None, name: str) -> None:
    """Nothing is captured there; the steps are called in the same way, and the host waits no more often."""
    plain, one = run_there(settings_of(name, changed=longer(name)))
    there, other = run_there(settings_of(name, changed=merge(longer(name), ON)))
    assert numbers(there) == numbers(plain)
    assert other.training.waits.total() == one.training.waits.total()
    assert other.training.operations > one.training.operations, "positions are copied into their buffer"


def test_a_run_with_graphs_is_the_same_run() -> None:
    assert settings_of("fedpnp", changed=ON).digest() == settings_of("fedpnp").digest()


@pytest.mark.parametrize(("other", "value"), [("compile", "default"), ("batched", 2)])
def test_not_together_with_what_computes_otherwise(other: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"workers\.graphs and workers\.{other} do not go together"):
        make_settings({"method": {"name": "fedpnp"}, "workers": {"graphs": "on", other: value}})


@pytest.mark.parametrize("name", ["kmeans", "ncc", "uifca", "clustergan", "kfed", "cfl, text"])
def test_what_cannot_be_captured_is_refused_before_any_work(sets: None, name: str) -> None:
    with pytest.raises(MethodError, match=r"workers\.graphs is for local work that is gradient steps"):
        new_run(settings_of(name, changed=ON))


# --- the step itself -------------------------------------------------------------------------------------------------


def counting() -> tuple[Tensor, list[Tensor], Any]:
    total, seen = torch.zeros(()), []

    def step(positions: Tensor) -> Tensors:
        seen.append(positions)
        total.add_(positions.sum())
        return {"total": total.clone()}

    return total, seen, step


def test_a_step_is_captured_after_its_warm_up_and_only_for_its_shape(recorder: Recorder) -> None:
    total, seen, step = counting()
    repeated = RepeatedStep(step, (), CPU)
    found = [float(repeated(torch.tensor([n, n]))["total"]) for n in range(1, 8)]
    assert found == [2.0, 6.0, 12.0, 20.0, 30.0, 42.0, 56.0]
    assert len(seen) == WARM_UP + 1
    assert len({each.data_ptr() for each in seen}) == 1, "always from one buffer"
    assert float(repeated(torch.tensor([1]))["total"]) == 57.0
    assert float(repeated(torch.tensor([1, 1]))["total"]) == 59.0
    assert (recorder.captured, recorder.repeated) == (1, 7 - WARM_UP + 1)
    assert float(total) == 59.0


def test_the_recording_repeats_wrongly_what_a_graph_would(recorder: Recorder) -> None:
    """So the test of all methods would see a number that a step takes from Python."""
    rising = iter(range(100))
    repeated = RepeatedStep(lambda positions: {"n": positions.sum() * 0 + next(rising)}, (), CPU)
    assert [int(repeated(torch.tensor([0]))["n"]) for _ in range(6)] == [0, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("looks", [True, False])
def test_the_recording_refuses_what_a_graph_would(recorder: Recorder, looks: bool) -> None:
    own, other = torch.Generator(), torch.Generator()

    def step(positions: Tensor) -> Tensors:
        found = torch.rand(2, generator=own if looks else other) + positions
        return {"sum": found.sum() * (float(found[0]) if looks else 1.0)}

    repeated = RepeatedStep(step, (own,), CPU)
    for _ in range(WARM_UP):
        repeated(torch.tensor([1]))
    with pytest.raises(RuntimeError, match="looks at a value" if looks else "does not know"):
        repeated(torch.tensor([1]))


def test_numbers_that_the_next_step_overwrites_are_summed() -> None:
    place = torch.zeros(())
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    client: Any = SimpleNamespace(id=0, streams=SimpleNamespace(round=1))
    found = run_steps(
        client,
        [torch.tensor([1.0]), torch.tensor([4.0])],
        optimiser,
        lambda positions: (positions.sum(), {}),
        repeated=lambda whole: lambda positions: {"loss": place.copy_(positions.sum())},
    )
    assert found == {"loss": 2.5}


def test_generators_go_on_as_in_plain_steps(recorder: Recorder) -> None:
    drawn = []
    for kind in (None, RepeatedStep):
        generator = torch.Generator().manual_seed(3)

        def step(positions: Tensor, generator: torch.Generator = generator) -> Tensors:
            return {"drawn": torch.rand(4, generator=generator).sum() + positions.sum()}

        take = step if kind is None else kind(step, (generator,), CPU)
        drawn.append([float(take(torch.tensor([n]))["drawn"]) for n in range(9)])
    assert drawn[0] == drawn[1]


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
    def capturing(graph: PretendGraph, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        yield

    patch.setattr(graphs.torch, "cuda", SimpleNamespace(CUDAGraph=graph, graph=capturing))
    return made


def test_on_cuda_one_graph_is_made_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, generators, calls = cuda(monkeypatch), (torch.Generator(), torch.Generator()), []

    def work() -> Tensors:
        calls.append(1)
        return {"loss": torch.ones(())}

    replay = capture(work, generators, torch.device("cuda"))
    (graph,) = made
    assert graph.generators == list(generators)
    assert [float(replay()["loss"]) for _ in range(3)] == [1.0] * 3
    assert (len(calls), graph.replayed) == (1, 3)


def test_what_torch_cannot_capture_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch)

    def work() -> Tensors:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(MethodError, match=r"not permitted.*set workers\.graphs=off"):
        capture(work, (), torch.device("cuda"))
