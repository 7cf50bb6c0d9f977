"""The workload in one engine, in a process of its own: `python -m` this, ENGINE and `--threads T`.

Prints a line `RESULT {...}`: seconds of the first round, of a steady round (the median of the others), of the whole
process, CPU seconds of a steady round, and writes the final weights as one vector.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray is nice to other processes by default, at its own cost

if __name__ == "__main__" and sys.argv[1:2] == ["shoal"]:
    from shoal.engine.workers.worker_processes import start_fork_server

    start_fork_server()  # as `shoal run` does, before anything heavy is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from shoal_research.benchmarks.meter import machine_busy, tree_cpu  # noqa: E402
from shoal_research.benchmarks.workload import Workload, client_data, initial, order, train_client  # noqa: E402

Marks = list[tuple[float, float, float]]
"""(time, CPU seconds of this process tree, CPU seconds of the machine) at the start and after every round."""


def mark() -> tuple[float, float, float]:
    """Now."""
    return time.perf_counter(), tree_cpu(), machine_busy()


def flat(state: dict[str, Tensor]) -> Tensor:
    """A state as one vector."""
    return torch.cat([t.detach().reshape(-1).float() for t in state.values()])


def one_process(work: Workload, threads: int, workers: int) -> tuple[Tensor, Marks]:
    """One process, one model, a running mean."""
    torch.set_num_threads(threads)
    for client in range(work.clients):
        client_data(client, work.samples)
    model = initial(work)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    marks = [mark()]
    for round in range(1, work.rounds + 1):
        total = {k: torch.zeros_like(v) for k, v in state.items()}
        for client in range(work.clients):
            model.load_state_dict(state)
            train_client(model, work, client, round)
            for name, tensor in model.state_dict().items():
                total[name].add_(tensor, alpha=1.0 / work.clients)
        state = total
        marks.append(mark())
    return flat(state), marks


def batched(work: Workload, threads: int, workers: int) -> tuple[Tensor, Marks]:
    """All clients at once: stacked weights, vmap over the client axis."""
    from torch.func import functional_call, grad, vmap

    torch.set_num_threads(threads)
    data = [client_data(c, work.samples) for c in range(work.clients)]
    xs, ys = torch.stack([d[0] for d in data]), torch.stack([d[1] for d in data])
    model = initial(work)
    state = {k: v.detach().clone() for k, v in model.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x,)), y)

    step = vmap(grad(loss), in_dims=(0, 0, 0))
    rows = torch.arange(work.clients)[:, None]
    marks = [mark()]
    for round in range(1, work.rounds + 1):
        params = {k: v.expand(work.clients, *v.shape).clone() for k, v in state.items()}
        orders = [order(work, c, round) for c in range(work.clients)]
        for number in range(len(orders[0])):
            at = torch.stack([o[number] for o in orders])
            gradients = step(params, xs[rows, at], ys[rows, at])
            for name in params:
                params[name].sub_(gradients[name], alpha=work.lr)
        state = {k: v.mean(0) for k, v in params.items()}
        marks.append(mark())
    return flat(state), marks


def flower_client(work: Workload, threads: int) -> Any:
    """Return a ClientApp that trains the client of its partition."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    sizes = work.to_json()
    client = ClientApp()

    @client.train()
    def train(message, context):  # type: ignore[no-untyped-def]
        import torch as there

        from shoal_research.benchmarks.workload import Net, train_client
        from shoal_research.benchmarks.workload import Workload as Sizes

        there.set_num_threads(threads)
        known = Sizes(**sizes)
        number = int(context.node_config["partition-id"])
        model = Net(known.encoder)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, known, number, int(message.content["config"]["server-round"]))
        answer = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": known.samples}),
        }
        return Message(content=RecordDict(answer), reply_to=message)

    return client


def flower(work: Workload, threads: int, workers: int) -> tuple[Tensor, Marks]:
    """Flower's simulation: ServerApp with FedAvg, ClientApps in Ray actors."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    cores = os.cpu_count() or 1
    server = ServerApp()
    found: dict[str, Tensor] = {}
    marks: Marks = []

    class Timed(FedAvg):  # type: ignore[misc]
        def configure_train(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if not marks:
                marks.append(mark())
            return super().configure_train(*args, **kwargs)

        def aggregate_train(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            result = super().aggregate_train(*args, **kwargs)
            marks.append(mark())
            return result

    @server.main()
    def main(grid, context):  # type: ignore[no-untyped-def]
        strategy = Timed(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial(work).state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({}),
        )
        found.update(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server,
        client_app=flower_client(work, threads),
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False, "logging_level": "error"},
            "client_resources": {"num_cpus": cores // workers, "num_gpus": 0.0},
        },
    )
    return flat(found), marks


def pfl_model(work: Workload) -> tuple[nn.Module, Any]:
    """Return the initial network and pfl's model of it, whose server replaces the weights by their mean."""
    import types

    from pfl.model.pytorch import PyTorchModel

    net: nn.Module = initial(work)

    def loss(self, inputs, targets, eval=False):  # type: ignore[no-untyped-def]
        self.eval() if eval else self.train()
        return F.cross_entropy(self(inputs), targets)

    net.loss = types.MethodType(loss, net)  # type: ignore[assignment]
    net.metrics = types.MethodType(lambda self, inputs, targets, eval=True: {}, net)  # type: ignore[assignment]
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    return net, model


def pfl(work: Workload, threads: int, workers: int) -> tuple[Tensor, Marks]:
    """pfl-research: its simulated backend, one process; it draws batches of its own, so only the work is the same."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics

    torch.set_num_threads(threads)
    net, model = pfl_model(work)

    def make(client):  # type: ignore[no-untyped-def]
        return Dataset(raw_data=list(client_data(client, work.samples)), user_id=str(client))

    for client in range(work.clients):
        client_data(client, work.samples)
    sampler = get_user_sampler("minimize_reuse", list(range(work.clients)))
    backend = SimulatedBackend(training_data=FederatedDataset(make, sampler), val_data=None, postprocessors=[])
    marks: Marks = []

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            marks.append(mark())
            return False, Metrics()

    settings = NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=10**6,
        train_cohort_size=work.clients,
        val_cohort_size=0,
    )
    marks.append(mark())
    FederatedAveraging().run(
        algorithm_params=settings,
        backend=backend,
        model=model,
        callbacks=[Clock()],
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        send_metrics_to_platform=False,
    )
    return flat(dict(net.state_dict())), marks


def shoal(work: Workload, threads: int, workers: int) -> tuple[Tensor, Marks]:
    """Shoal as its user starts it: a settings file, Prefect and MLflow on."""
    from shoal_research.benchmarks.shoal_run import run_workload

    return run_workload(work, workers)


ENGINES: dict[str, Callable[[Workload, int, int], tuple[Tensor, Marks]]] = {
    "plain": one_process,
    "batched": batched,
    "flower": flower,
    "pfl": pfl,
    "shoal": shoal,
}


def main() -> None:
    """One measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--work", default="{}", help="sizes, JSON")
    given = parser.parse_args()
    work = Workload(**json.loads(given.work))
    weights, marks = ENGINES[given.engine](work, given.threads, given.workers)
    torch.save(weights, given.weights)
    steps = [tuple(b - a for a, b in zip(one, two, strict=True)) for one, two in itertools.pairwise(marks)]
    rest = steps[1:] or steps
    wall = sum(s[0] for s in rest)
    result = {
        "first_round_s": steps[0][0],
        "round_s": statistics.median(s[0] for s in rest),
        "round_cpu_s": statistics.median(s[1] for s in rest),
        "others": max(0.0, sum(s[2] - s[1] for s in rest)) / (wall * (os.cpu_count() or 1)),
        "total_s": time.perf_counter() - BEGAN,
    }
    print("RESULT " + json.dumps(result), flush=True)
    if given.engine == "shoal":
        from shoal.cli.main import leave

        leave(0)  # as the command does


if __name__ == "__main__":
    main()
