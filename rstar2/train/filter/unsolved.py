"""Leaves out the problems that a policy solves every time.

Whether a problem is always solved is decided by new samples, by verdicts or traces of an earlier run, or by the
outcomes of the previous stage.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rstar2.data.benchmarks import fingerprint
from rstar2.data.problem import Problem
from rstar2.engines.pool import EnginePool
from rstar2.errors import Failure, UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.outcomes import missed
from rstar2.eval.methods.agent import Agent, AgentMethod, RetryingTools
from rstar2.eval.progress import Progress, Services
from rstar2.eval.run import Part, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.eval.stored import TRACES, VERDICTS
from rstar2.eval.target import model_hash
from rstar2.eval.verdicts import Tally
from rstar2.judge.client import JudgeClient
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import Trace, read_traces
from rstar2.retry import RetryPolicy
from rstar2.runs import refuse_changed
from rstar2.train.filter.card import write_card
from rstar2.train.filter.engines import CPU_BATCH, open_engines
from rstar2.train.filter.progress import CARD, SETTINGS
from rstar2.train.recipe import StageRecipe
from rstar2.train.records.outcome_log import OUTCOMES_FILE, OutcomeReader, outcomes_of
from rstar2.train.reward import solved, text_to_grade
from rstar2.train.sampling import JudgeAddress, Rows, check_samples, drop_solved, leave_out, problems_of

_GRADERS = 4
"""Number of grader processes if the engines run on GPUs."""
MAX_ERROR_SHARE = 0.05
"""At most this share of the samples may end with an error. A problem remains if one of its samples ended with an error,
as if the sample had been wrong."""


@dataclass(frozen=True)
class StageFilter:
    """The filter of one stage: its inputs and its folders."""

    model: Path
    """The policy from which the stage starts."""
    rows: Rows
    """The rows of the training problems before the filter."""
    recipe: StageRecipe
    judge: JudgeAddress
    out: Path
    """The folder for verdicts, card and the problems that remain."""
    logs: Path

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that the verdicts depend on."""
        return {
            "model": {"path": str(self.model.absolute()), "sha256": model_hash(self.model)},
            "data": {"problems": len(self.rows), "sha256": fingerprint(problems_of(self.rows))},
            "reward": self.recipe.reward,
            "settings": sampling_of(self.recipe).protocol(),
        }


def unsolved(stage: StageFilter, on_progress: Callable[[Progress], None]) -> Rows:
    """Samples every problem `recipe.drop_solved` times, and returns the problems that were not solved every time. The
    samples are made with the policy from which the stage starts. `rstar2.train.sampling.drop_solved` has the exact
    rule. The verdicts, the remaining problems and the card are written to `stage.out`. If the process was killed, a new
    call continues with the verdicts in `stage.out`.

    Raises:
        UserError: vLLM is not installed, or the folder has verdicts that were made with other settings.
        Failure: the servers or the judge do not start or no longer answer, the disk is full, or too many samples end in
            an error.
    """
    out, recipe, identity = stage.out, stage.recipe, stage.identity
    out.mkdir(parents=True, exist_ok=True)
    refuse_changed(out / SETTINGS, identity)
    finished = (out / CARD).exists()
    if not finished:
        _sample(stage, identity, on_progress)
    tally = Tally.of(out / VERDICTS.file)
    if not finished:
        _check_errors(tally)
    remaining = drop_solved(stage.rows, _outcomes(tally), recipe.drop_solved, recipe.rollout.prompts)
    if not finished:
        write_card(out, tally, (row["extra_info"]["id"] for row in remaining), recipe.drop_solved, identity)
    return remaining


def unsolved_by_file(file: Path, rows: Rows, recipe: StageRecipe) -> Rows:
    """Returns the problems that were not solved every time, according to the file that `solved_file` returned."""
    counted_before = file.name == VERDICTS.file
    outcomes = _outcomes(Tally.of(file)) if counted_before else solved(read_traces(file), recipe.reward)
    return drop_solved(rows, outcomes, recipe.drop_solved, recipe.rollout.prompts)


def unsolved_by_outcomes(model: Path, rows: Rows, recipe: StageRecipe) -> Rows:
    """Returns the problems that are probably not solved every time, according to the outcomes of the stage that made
    the model.

    A problem is left out if it is more likely than not that all of `recipe.drop_solved` further rollouts would be
    correct. The probability follows from the posterior of the problem's pass rate
    (`rstar2.train.outcomes.Problems.belief`).

    Raises:
        UserError: the outcomes cannot be used, see `outcomes_before`.
    """
    problems = outcomes_before(model, recipe).problems([row["extra_info"]["id"] for row in rows], 0, 0)
    belief = problems.belief(recipe.curriculum.discount)
    return leave_out(rows, belief.solved(recipe.drop_solved).tolist(), recipe.rollout.prompts)


def outcomes_before(model: Path, recipe: StageRecipe) -> OutcomeReader:
    """Returns the outcomes of the stage that made a model.

    Raises:
        UserError: the stage has no outcomes, or the stage's reward was not the recipe's reward.
    """
    before = outcomes_of(model)
    hint = 'Set solved_by = "samples", which samples the problems with the model.'
    if before is None:
        raise UserError(
            f'solved_by = "outcomes" needs the file {model.parent / OUTCOMES_FILE}, which the stage that made the '
            "model should have written",
            hint,
        )
    reward = before.header.get("reward")
    if reward != recipe.reward:
        raise UserError(
            f"{model.parent / OUTCOMES_FILE} has outcomes of reward = {reward}, but the recipe has {recipe.reward}",
            hint,
        )
    return before


def check_solved_file(path: Path, rows: Rows, recipe: StageRecipe) -> None:
    """Checks that a file has enough samples to decide for every problem whether it is solved.

    Raises:
        UserError: a problem has too few samples in the file, or `solved_file` raises UserError.
    """
    file = solved_file(path, recipe)
    samples: Counter[str] = Counter()
    if file.name == VERDICTS.file:
        samples.update({problem: len(verdicts) for problem, verdicts in Tally.of(file).samples.items()})
    else:
        samples.update(trace.problem_id for trace in read_traces(file))
    for row in rows:
        name = row["extra_info"]["id"]
        try:
            check_samples(name, samples[name], recipe.drop_solved)
        except UserError as error:
            raise UserError(f"--solved {path}: {error.message}", error.hint) from error


def solved_file(path: Path, recipe: StageRecipe | None) -> Path:
    """Finds the file that `--solved` names: verdicts of a filter, or traces of an `rstar2 eval` run of one benchmark.

    Args:
        path: the file, or a folder that contains it.
        recipe: the recipe of the stage that leaves out solved problems, or None if no stage does.

    Raises:
        UserError: the folder does not have exactly one file of verdicts or traces, the verdicts were made with another
            reward than the recipe's reward, or `recipe` is None.
    """
    if recipe is None:
        raise UserError(
            f"--solved {path}: no stage of this run leaves out solved problems (drop_solved = 0)",
            "Remove --solved, or set drop_solved: a problem is left out if it is solved in each of this many samples.",
        )
    in_folder = sorted(path.glob(f"**/{VERDICTS.file}")) or sorted(path.glob(f"**/{TRACES.file}"))
    files = [path] if path.is_file() else in_folder
    if len(files) != 1:
        raise UserError(
            f"--solved {path}: needs exactly one file of verdicts or traces, but there are {len(files)}",
            "Name the folder of an `rstar2 eval` run over the training problems, or the `solved` folder of a stage "
            "that filtered them.",
        )
    settings = files[0].with_name(SETTINGS)
    if files[0].name == VERDICTS.file and settings.is_file():
        reward = json.loads(settings.read_text(encoding="utf-8")).get("reward")
        if reward != recipe.reward:
            raise UserError(
                f"--solved {path}: its verdicts use reward = {reward}, but the recipe has {recipe.reward}",
                "Remove --solved, so that the problems are sampled again.",
            )
    return files[0]


def sampling_of(recipe: StageRecipe) -> EvalSettings:
    """Returns the settings for sampling a stage's problems: the limits and the temperature of the stage's own
    rollouts."""
    hardware = recipe.hardware
    each = CPU_BATCH if hardware.device == "cpu" else hardware.sequences_in_flight
    return EvalSettings(
        samples=recipe.drop_solved,
        temperature=recipe.rollout.temperature,
        max_tokens=recipe.rollout.tokens,
        max_turns=recipe.rollout.max_turns,
        in_flight=each * hardware.engines,
        seed=recipe.seed,
    )


class PolicyMethod(AgentMethod):
    """An evaluation's agent loop that grades answers in the same way as training: by the rule of the recipe's
    reward."""

    def __init__(self, agent: Agent, settings: EvalSettings, reward: str) -> None:
        super().__init__(agent, settings)
        self._reward = reward

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Returns the trace with its verdict. The verdict is `error` if the judge lost a call or the grader failed."""
        if trace.lost_calls:
            return trace.model_copy(update={"verdict": "error"})
        verdict = await self.verdict(trace, problem, text_to_grade(trace, self._reward))
        undecided = missed(verdict) in ("deadline", "fault", "invalid")
        return trace.model_copy(update={"verdict": "error" if undecided else verdict.verdict})


def filter_part(
    problems: list[Problem], out: Path, method: PolicyMethod, identity: Mapping[str, Any], keep_traces: bool
) -> Part:
    """Returns the description from which `rstar2.eval.run` samples the problems of the filter.

    The verdicts of all samples are saved, including errors. If `keep_traces` is True, traces are saved too.
    """
    record = replace(VERDICTS, errors=True, results=False, beside=TRACES if keep_traces else None)
    return Part(problems, out, method, record=record, identity=identity)


def _sample(stage: StageFilter, identity: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> None:
    recipe, settings = stage.recipe, sampling_of(stage.recipe)
    graders = 1 if recipe.hardware.device == "cpu" else _GRADERS
    with (
        open_engines(stage.model, recipe.hardware, stage.logs) as (engines, codec),
        GraderPool(graders) as grader,
    ):

        async def work() -> None:
            async with AsyncExitStack() as stack:
                for engine in engines:
                    await stack.enter_async_context(aclosing(engine))
                client = await stack.enter_async_context(JudgeClient(*stage.judge))
                retries = RetryPolicy(settings.wait_s)
                pool = EnginePool(engines, retries, settings.turn_timeout_s)
                tools = RetryingTools(Toolbox(client, codec.format), retries)
                method = PolicyMethod(Agent(pool, tools, codec, grader), settings, recipe.reward)
                part = filter_part(
                    problems_of(stage.rows), stage.out, method, identity, recipe.keep_filter_traces
                )
                services = Services(retries, (pool,), tools)
                await run_parts({"": part}, settings.in_flight, services, on_progress)

        asyncio.run(work())


def _check_errors(tally: Tally) -> None:
    errors, samples = tally.counts["error"], tally.counts.total()
    if errors > MAX_ERROR_SHARE * samples:
        raise Failure(
            f"{errors} of {samples} samples of the training problems failed with an error of the engines, the judge "
            "or the grader: these are too many to decide which problems are solved",
            "Find the cause in the logs of this start. The same command then repeats these samples.",
        )


def _outcomes(tally: Tally) -> Iterator[tuple[str, bool]]:
    for problem, verdicts in tally.samples.items():
        for sample in sorted(verdicts):
            yield problem, verdicts[sample] == "correct"
