"""Has a curriculum choose the problems that VERL's data loader hands out. Works by being imported.

VERL 0.9.1 has no hook for the data loader's sampler: when this module is imported, it replaces the function by which
VERL's trainer makes it. If VERL's `data` has no key `PROBLEM_SAMPLER`, VERL's own sampler is made: it is that of the
curriculum `uniform`.

Outcomes come from `STAGE/outcomes.jsonl`, to which `rstar2.train.verl.sampler` appends those of a step before VERL
fetches problems for the next one. The data loader has no processes that fetch ahead, so a choice knows all outcomes so
far. VERL saves the state of the sampler in its checkpoints.
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
    """Hands out indices of problems without end, each chosen by all outcomes that are known by then.

    It chooses as many at a time as a step asks. Those that are left, after the replacements of dropped groups, are
    forgotten when there are new outcomes.
    """

    def __init__(self, settings: Any, ids: Sequence[str]) -> None:
        """`settings`: as `rstar2.train.command` writes them; `ids`: of the problems, in the order of VERL's dataset."""
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
        """How many of the steps with outcomes have been taken into account."""
        self._handed_out = 0
        self._chosen: list[int] = []
        """Problems that are to be handed out next."""
        self._under_way: list[int] = []
        """Problems that were handed out and have no outcome yet, the oldest first."""

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
        # Of a step that is rolled out again some problems never have an outcome.
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
        # Seeded by what was handed out before, so that a resumed run draws as an uninterrupted one would.
        rng = np.random.default_rng(sample_seed(self._seed, f"curriculum {self._handed_out}", 0))
        try:
            return self._curriculum.choose(problems, self._prompts, rng, self._under_way)
        except RStarError as error:
            write_final_error(self._stage, error)
            raise

    def state_dict(self) -> dict[str, Any]:
        """What VERL saves in a checkpoint. The outcomes are in the stage's folder."""
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
    """Stands in for VERL's."""
    settings = data_config.get(PROBLEM_SAMPLER)
    if settings is None:
        return _verls_sampler(data_config, dataset)
    return ProblemSampler(settings, [row["id"] for row in dataset.dataframe["extra_info"]])


trainer_base.create_rl_sampler = _create_sampler
