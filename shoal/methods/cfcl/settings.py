"""Hyper-parameters of CF-CL, and the plan that they set: when devices push, pull and train, and the server averages."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.setting import setting
from shoal.methods.cfcl.state import Action, CFCLState, Selection


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Selection = setting(
        "cfcl",
        "how pulled samples are chosen: by importance (cfcl) or uniformly (uniform); none: devices exchange nothing",
    )
    steps: int = setting(2000, "total number of local steps", ge=1)
    tau_a: int = setting(25, "number of local steps between two averagings", ge=1)
    tau_p: int = setting(25, "number of local steps between two pulls", ge=1)
    reserve: int = setting(20, "number of samples in a reserve", ge=0)
    budget: int = setting(20, "number of samples pulled over each link", ge=0)
    clusters: int = setting(4, "number of clusters for macro importance", ge=1)
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting((), "links to use instead of a random graph")

    @property
    def by_importance(self) -> bool:
        """Whether a pull chooses samples by their importance, which needs reserves."""
        return self.selection == "cfcl"

    def first(self, linked: bool) -> Action:
        """Return the action of round 1: a push where reserves are needed, a pull, or training without any exchange."""
        if not linked or self.selection == "none":
            return "train"
        return "push" if self.by_importance else "pull"

    def stretch(self, step: int) -> int:
        """Return the number of local steps from `step` to the next averaging, pull or end."""
        until = [self.tau_a - step % self.tau_a, self.steps - step]
        if self.selection != "none":
            until.append(self.tau_p - step % self.tau_p)
        return min(until)

    def step_after(self, state: CFCLState) -> int:
        """Return the number of local steps done once the round after `state` is over."""
        return state.step + (self.stretch(state.step) if state.next == "train" else 0)

    def averages_at(self, step: int) -> bool:
        """Return whether the server averages after this number of local steps."""
        return step % self.tau_a == 0 or step == self.steps

    def next_action(self, step: int, done: Action, linked: bool) -> Action:
        """Return the action after a round.

        Args:
            step: number of local steps done.
            done: the action of the round.
            linked: whether the graph has any link.
        """
        if step >= self.steps:
            return "end"
        due = self.selection != "none" and linked and step % self.tau_p == 0
        return "pull" if due and done != "pull" else "train"
