"""Makes VERL's data loader use the problems that a curriculum chooses.

VERL 0.9.1 has no hook for the data loader's sampler. When this module is imported, it therefore replaces the function
that creates the sampler. If VERL's table `data` has no key `PROBLEM_SAMPLER`, as with the curriculum `uniform`, VERL's
own sampler is used.

The outcomes of problems come from `STAGE/outcomes.jsonl`. `rstar2.train.verl.sampler` appends the outcomes of a step to
`outcomes.jsonl` before VERL fetches the problems of the next step. The data loader has no processes that fetch problems
in advance, so every choice is based on all outcomes so far. VERL saves the state of the sampler in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Sampler
from verl.trainer.ppo.v1 import trainer_base

from rstar2.errors import RStarError
from rstar2.eval.settings import sample_seed
from rstar2.train.curriculum import PROBLEM_SAMPLER, Curriculum, CurriculumSettings
from rstar2.train.records.final_error import write_final_error
from rstar2.train.records.outcome_log import OutcomeReader


class ProblemSampler(Sampler[int]):  # type: ignore[misc]
    """An endless iterator that yields the indices of problems. It chooses problems by their outcomes so far.

    The sampler chooses the problems of a whole step at a time. When there are new outcomes, the sampler drops the
    problems that it has chosen but not yet returned. For example, such problems remain if only a few problems were
    needed to replace dropped groups.

    Args:
        settings: the table of settings that `rstar2.train.command` writes.
        ids: the ids of the problems, in the order of VERL's dataset.
    """

    def __init__(self, settings: Any, ids: Sequence[str]) -> None:
        self._stage = Path(settings["stage"])
        self._curriculum = Curriculum(CurriculumSettings.model_validate(dict(settings["curriculum"])))
        self._seed = int(settings["seed"])
        self._steps = int(settings["steps"])
        self._prompts = int(settings["prompts"])
        self._rollouts = int(settings["rollouts"])
        self._most_under_way = int(settings["most_under_way"])
        self._ids = list(ids)
        self._place = {name: at for at, name in enumerate(self._ids)}
        self._outcomes = OutcomeReader(self._stage)
        self._steps_read = 0
        """Number of steps whose outcomes have been read."""
        self._handed_out = 0
        """Number of problems that were returned so far."""
        self._chosen: list[int] = []
        """Indices of the problems that the sampler will return next."""
        self._under_way: list[int] = []
        """Indices of the problems that were returned and have no outcome yet, in the order in which they were
        returned."""

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._read_outcomes()
        if not self._chosen:
            self._chosen = self._choose()
        index = self._chosen.pop(0)
        self._handed_out += 1
        # The list is limited, because a step that is rolled out again leaves problems that never have an outcome.
        self._under_way = [*self._under_way, index][-self._most_under_way :]
        return index

    def _read_outcomes(self) -> None:
        self._outcomes.read()
        new = self._outcomes.steps[self._steps_read :]
        if new:
            ended = {self._place.get(name) for step in new for name in step.counts}
            self._under_way = [index for index in self._under_way if index not in ended]
            self._chosen = []
            self._steps_read = len(self._outcomes.steps)

    def _choose(self) -> list[int]:
        problems = self._outcomes.problems(self._ids, self._steps, self._rollouts)
        # Seeded by the number of problems so far, so that a resumed run draws the same problems as an uninterrupted
        # one.
        rng = np.random.default_rng(sample_seed(self._seed, f"curriculum {self._handed_out}", 0))
        try:
            return self._curriculum.choose(problems, self._prompts, rng, self._under_way)
        except RStarError as error:
            write_final_error(self._stage, error)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that VERL saves in a checkpoint. The outcomes are not part of the saved state."""
        return {
            "handed_out": self._handed_out,
            "steps_read": self._steps_read,
            "chosen": [self._ids[i] for i in self._chosen],
            "under_way": [self._ids[i] for i in self._under_way],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._handed_out, self._steps_read = state["handed_out"], state["steps_read"]
        self._chosen, self._under_way = (
            [self._place[name] for name in state[key]] for key in ("chosen", "under_way")
        )


_verls_sampler = trainer_base.create_rl_sampler


def _create_sampler(data_config: Any, dataset: Any) -> Any:
    """Replaces VERL's `create_rl_sampler`, so that a curriculum can choose the problems."""
    settings = data_config.get(PROBLEM_SAMPLER)
    if settings is None:
        return _verls_sampler(data_config, dataset)
    return ProblemSampler(settings, [row["id"] for row in dataset.dataframe["extra_info"]])


trainer_base.create_rl_sampler = _create_sampler
