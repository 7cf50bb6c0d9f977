"""Local steps on two augmented views of each sample: the base of contrastive and self-supervised methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.data.views.augment import AnyRecipe, Recipe, two_views
from shoal.data.views.device_views import DeviceViews
from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Tensors
from shoal.methods.training.local import as_low_input, batches, view_recipe
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch
from shoal.methods.training.steps import GradientMethod


class TwoViewMethod(GradientMethod):
    """A method whose clients train a network on two views for some local epochs.

    A batch of its `step_loss` is one tensor (2n, ...): views a, then views b, of n images, vectors or windows. The
    papers' systems see images; on vectors and windows they have other views (`shoal.data.views.array_views`) and
    encoders (`shoal.models.arrays`), and nothing else differs.

    A subclass implements `network`, `local_steps` by `view_steps`, and `step_loss`.
    """

    local_options: ClassVar[tuple[str, ...]] = ("steps", "proximal")
    encoder = "trained"
    kinds = ("image", "vector", "series")

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a fresh network with the run's initial weights."""

    def recipe(self) -> AnyRecipe:
        """Return the recipe of the views: the user's, else the data set's."""
        return view_recipe(self.context)

    @cached_property
    def make_views(self) -> Callable[[Tensor, torch.Generator], Tensor]:
        """A function from samples (as of `Samples.x`) to views a, then views b, by the run's recipe."""
        device = self.context.device
        recipe = self.recipe()
        if device.type == "cpu" or not isinstance(recipe, Recipe):
            return lambda x, generator: two_views(x, recipe, generator)
        return DeviceViews(recipe, self.context.spec.shape, device)

    def view_steps(
        self,
        client: Client,
        network: nn.Module,
        finish: Callable[[TakenSteps], Update],
        *,
        companions: Mapping[str, nn.Module] | None = None,
        extra: Tensors | None = None,
        optimiser: Mapping[str, Tensor] | None = None,
        keep_last: bool = False,
    ) -> LocalSteps:
        """Return a client's local epochs on two views, to be taken; arguments as of `LocalSteps` and `batches`."""
        make_views = self.make_views
        generator = client.streams.torch("views", self.context.device)

        def select(positions: Tensor) -> Batch:
            return (client.train.raw(positions),)

        def inputs(batch: Batch) -> Batch:
            return (as_low_input(make_views(client.train.data.computable(batch[0]), generator), self.context),)

        return LocalSteps(
            client,
            network.train(),
            batches(client, self.context.local, keep_last=keep_last),
            select,
            inputs,
            finish,
            companions or {},
            extra or {},
            optimiser,
            generators=(generator,),
        )
