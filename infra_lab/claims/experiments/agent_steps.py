"""An agent's steps in a row, each of which may fail, be checked and be tried again.

Answers "each step is right in 95 of 100 cases: how often is the task done?", and why a retry is
worth no more than what decides on it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loop:
    """Attributes:
    num_steps: all of which must be right.
    success: chance that a try is right.
    retries: how often a step that is taken for wrong is tried again.
    missed: chance that a wrong step passes for right. Right ones always do.
    """

    num_steps: int
    success: float
    retries: int = 0
    missed: float = 0.0

    def step_success(self) -> float:
        """Of one step: right at once, or found wrong and right at one of the retries.

        p (1 + w + w^2 + ...), with w = (1 - p)(1 - missed) for each retry.
        """
        found_wrong = (1 - self.success) * (1 - self.missed)
        return self.success * sum(found_wrong**tries for tries in range(self.retries + 1))

    def task_success(self) -> float:
        """All steps in a row."""
        return self.step_success() ** self.num_steps

    def tries(self) -> float:
        """The mean number of tries a step takes, right or wrong."""
        found_wrong = (1 - self.success) * (1 - self.missed)
        return sum(found_wrong**tries for tries in range(self.retries + 1))

    def simulate(self, num_tasks: int, seed: int) -> float:
        """The share of tasks that end well when the loop is played."""
        chance = random.Random(seed)
        return sum(self._task(chance) for _ in range(num_tasks)) / num_tasks

    def _task(self, chance: random.Random) -> bool:
        return all(self._step(chance) for _ in range(self.num_steps))

    def _step(self, chance: random.Random) -> bool:
        for _ in range(self.retries + 1):
            if chance.random() < self.success:
                return True
            if chance.random() < self.missed:
                return False  # wrong, and nobody noticed
        return False
