"""Leaves out the problems that a policy solves every time: counted before, believed after a stage, or sampled now."""

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
"""Processes, beside engines on GPUs."""
MOST_ERRORS = 0.05
"""Share of the samples that may end in an error; a problem that lost one is kept, as if it had been wrong."""


@dataclass(frozen=True)
class StageFilter:
    """What the filter of one stage samples, with what, and where it keeps the verdicts."""

    model: Path
    """The policy that the stage starts from."""
    rows: Rows
    recipe: StageRecipe
    judge: JudgeAddress
    out: Path
    logs: Path

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the verdicts."""
        return {
            "model": {"path": str(self.model.absolute()), "sha256": model_hash(self.model)},
            "data": {"problems": len(self.rows), "sha256": fingerprint(problems_of(self.rows))},
            "reward": self.recipe.reward,
            "settings": sampling_of(self.recipe).protocol(),
        }


def unsolved(stage: StageFilter, on_progress: Callable[[Progress], None]) -> Rows:
    """Sample every problem `recipe.drop_solved` times with the policy that a stage starts from; see `drop_solved`.

    Verdicts, kept problems and card are written to `stage.out`, where a killed call continues.

    Raises:
        UserError: vLLM is not installed, or the folder has verdicts of other settings.
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
    kept = drop_solved(stage.rows, _outcomes(tally), recipe.drop_solved, recipe.rollout.prompts)
    if not finished:
        write_card(out, tally, (row["extra_info"]["id"] for row in kept), recipe.drop_solved, identity)
    return kept


def unsolved_as_counted(file: Path, rows: Rows, recipe: StageRecipe) -> Rows:
    """The same, by an earlier filter's verdicts or an evaluation's traces, as `counted` finds them."""
    counted_before = file.name == VERDICTS.file
    outcomes = _outcomes(Tally.of(file)) if counted_before else solved(read_traces(file), recipe.reward)
    return drop_solved(rows, outcomes, recipe.drop_solved, recipe.rollout.prompts)


def unsolved_as_believed(model: Path, rows: Rows, recipe: StageRecipe) -> Rows:
    """The same by the outcomes of the stage that made the model, without sampling anything.

    A problem is left out if it is more likely than not that `recipe.drop_solved` further rollouts would all be correct,
    by the posterior of its pass rate (`rstar2.train.outcomes.Problems.belief`). A UserError as of `outcomes_before`.
    """
    problems = outcomes_before(model, recipe).problems([row["extra_info"]["id"] for row in rows], 0, 0)
    belief = problems.belief(recipe.curriculum.discount)
    return leave_out(rows, belief.solved(recipe.drop_solved).tolist(), recipe.rollout.prompts)


def outcomes_before(model: Path, recipe: StageRecipe) -> OutcomeReader:
    """The outcomes of the stage that made a model; a UserError if there are none, or another reward decided them."""
    before = outcomes_of(model)
    hint = 'Set solved_by = "samples", which samples the problems with the model.'
    if before is None:
        raise UserError(
            f'solved_by = "outcomes" needs {model.parent / OUTCOMES_FILE}, which the stage that makes a model writes',
            hint,
        )
    reward = before.header.get("reward")
    if reward != recipe.reward:
        raise UserError(
            f"{model.parent / OUTCOMES_FILE} has outcomes of reward = {reward}, but the recipe has {recipe.reward}",
            hint,
        )
    return before


def check_counted(path: Path, rows: Rows, recipe: StageRecipe) -> None:
    """Raise a UserError where what `counted` finds does not decide on each of the rows, or as of `counted`."""
    file = counted(path, recipe)
    samples: Counter[str] = Counter()
    if file.name == VERDICTS.file:
        samples.update({problem: len(seen) for problem, seen in Tally.of(file).samples.items()})
    else:
        samples.update(trace.problem_id for trace in read_traces(file))
    for row in rows:
        name = row["extra_info"]["id"]
        try:
            check_samples(name, samples[name], recipe.drop_solved)
        except UserError as error:
            raise UserError(f"--solved {path}: {error.message}", error.hint) from error


def counted(path: Path, recipe: StageRecipe | None) -> Path:
    """The verdicts of a filter, or the traces of an `rstar2 eval` run of one benchmark: a file, or in its folder.

    A UserError where there is not one such file, the verdicts were reached under another reward than the recipe's, or
    there is no recipe of a stage that leaves out solved problems.
    """
    if recipe is None:
        raise UserError(
            f"--solved {path}: no stage of this run leaves out solved problems (drop_solved = 0)",
            "Leave out --solved, or set drop_solved, the number of samples in each of which a problem must be solved.",
        )
    in_folder = sorted(path.glob(f"**/{VERDICTS.file}")) or sorted(path.glob(f"**/{TRACES.file}"))
    found = [path] if path.is_file() else in_folder
    if len(found) != 1:
        raise UserError(
            f"--solved {path}: needs one file of verdicts or traces there, but has {len(found)}",
            "Give the `rstar2 eval` run over the training problems, or the `solved` folder of a stage that "
            "filtered them.",
        )
    settings = found[0].with_name(SETTINGS)
    if found[0].name == VERDICTS.file and settings.is_file():
        reward = json.loads(settings.read_text(encoding="utf-8")).get("reward")
        if reward != recipe.reward:
            raise UserError(
                f"--solved {path}: its verdicts use reward = {reward}, but the recipe has {recipe.reward}",
                "Leave out --solved to sample the problems again.",
            )
    return found[0]


def sampling_of(recipe: StageRecipe) -> EvalSettings:
    """How the problems of a stage are sampled: with the limits and the temperature of its own rollouts."""
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
    """The agent loop, with the verdict that decides the reward of training."""

    def __init__(self, agent: Agent, settings: EvalSettings, reward: str) -> None:
        super().__init__(agent, settings)
        self._reward = reward

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """The trace with its verdict, which is `error` if the judge or the grader could not decide it."""
        if trace.lost_calls:
            return trace.model_copy(update={"verdict": "error"})
        verdict = await self.verdict(trace, problem, text_to_grade(trace, self._reward))
        undecided = missed(verdict) in ("deadline", "fault", "invalid")
        return trace.model_copy(update={"verdict": "error" if undecided else verdict.verdict})


def filter_part(
    problems: list[Problem], out: Path, method: PolicyMethod, identity: Mapping[str, Any], keep_traces: bool
) -> Part:
    """What the filter samples. It keeps verdicts, errors among them, and with `keep_traces` the traces too."""
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
    if errors > MOST_ERRORS * samples:
        raise Failure(
            f"{errors} of the {samples} samples that decide which problems are solved failed with an error of the "
            "engines, the judge or the grader",
            "The logs of this start say which; the same command repeats these samples.",
        )


def _outcomes(tally: Tally) -> Iterator[tuple[str, bool]]:
    for problem, seen in tally.samples.items():
        for sample in sorted(seen):
            yield problem, seen[sample] == "correct"
