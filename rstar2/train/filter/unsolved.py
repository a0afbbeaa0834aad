"""Leaves out the problems that a policy solves every time: as counted in an earlier run, or sampled now."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from rstar2.data.benchmarks import fingerprint
from rstar2.errors import Failure, UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.settings import EvalSettings
from rstar2.eval.target import model_hash
from rstar2.eval.verdicts import Tally
from rstar2.judge.client import JudgeClient
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import read_traces
from rstar2.runs import refuse_changed
from rstar2.train.filter.card import write_card
from rstar2.train.filter.engines import CPU_BATCH, open_engines
from rstar2.train.filter.progress import CARD, SETTINGS, VERDICTS
from rstar2.train.filter.sample import TRACES, FilterProgress, Sampler, sample_problems
from rstar2.train.recipe import StageRecipe
from rstar2.train.reward import solved
from rstar2.train.sampling import JudgeAddress, Rows, check_samples, drop_solved, problems_of

_GRADERS = 4
"""Processes, beside engines on GPUs."""
MOST_ERRORS = 0.05
"""Share of the samples that may end in an error; a problem that lost one is kept, as if it had been wrong."""


def unsolved(
    model: Path,
    rows: Rows,
    recipe: StageRecipe,
    judge: JudgeAddress,
    out: Path,
    logs: Path,
    on_progress: Callable[[FilterProgress], None],
) -> Rows:
    """Sample every problem `recipe.drop_solved` times with the policy that a stage starts from; see `drop_solved`.

    Verdicts, kept problems and card are written to `out`, where a killed call continues. A UserError without vLLM, a
    Failure where servers or judge do not start or no longer answer, the disk is full, or too many samples end in an
    error.
    """
    about = _settings(model, rows, recipe)
    out.mkdir(parents=True, exist_ok=True)
    refuse_changed(out / SETTINGS, about)
    finished = (out / CARD).exists()
    if not finished:
        _sample(model, rows, recipe, judge, out, logs, on_progress)
    tally = Tally.of(out / VERDICTS)
    if not finished:
        _check_errors(tally)
    kept = drop_solved(rows, _outcomes(tally), recipe.drop_solved, recipe.rollout.prompts)
    if not finished:
        write_card(out, tally, (row["extra_info"]["id"] for row in kept), recipe.drop_solved, about)
    return kept


def unsolved_as_counted(file: Path, rows: Rows, recipe: StageRecipe) -> Rows:
    """The same, by an earlier filter's verdicts or an evaluation's traces, as `counted` finds them."""
    counted_before = file.name == VERDICTS
    outcomes = _outcomes(Tally.of(file)) if counted_before else solved(read_traces(file), recipe.reward)
    return drop_solved(rows, outcomes, recipe.drop_solved, recipe.rollout.prompts)


def check_counted(path: Path, rows: Rows, recipe: StageRecipe) -> None:
    """Raise a UserError where what `counted` finds does not decide on each of the rows, or as of `counted`."""
    file = counted(path, recipe)
    samples: Counter[str] = Counter()
    if file.name == VERDICTS:
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
    in_folder = sorted(path.glob(f"**/{VERDICTS}")) or sorted(path.glob(f"**/{TRACES}"))
    found = [path] if path.is_file() else in_folder
    if len(found) != 1:
        raise UserError(
            f"--solved {path}: needs one file of verdicts or traces there, but has {len(found)}",
            "Give the `rstar2 eval` run over the training problems, or the `solved` folder of a stage that "
            "filtered them.",
        )
    settings = found[0].with_name(SETTINGS)
    if found[0].name == VERDICTS and settings.is_file():
        reward = json.loads(settings.read_text(encoding="utf-8")).get("reward")
        if reward != recipe.reward:
            raise UserError(
                f"--solved {path}: its verdicts use reward = {reward}, but the recipe has {recipe.reward}",
                "Leave out --solved to sample the problems again.",
            )
    return found[0]


def _settings(model: Path, rows: Rows, recipe: StageRecipe) -> dict[str, Any]:
    """What decides the verdicts."""
    return {
        "model": {"path": str(model.absolute()), "sha256": model_hash(model)},
        "data": {"problems": len(rows), "sha256": fingerprint(problems_of(rows))},
        "reward": recipe.reward,
        "settings": sampling_of(recipe).protocol(),
    }


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


def _sample(
    model: Path,
    rows: Rows,
    recipe: StageRecipe,
    judge: JudgeAddress,
    out: Path,
    logs: Path,
    on_progress: Callable[[FilterProgress], None],
) -> None:
    graders = 1 if recipe.hardware.device == "cpu" else _GRADERS
    with open_engines(model, recipe.hardware, logs) as (engines, codec), GraderPool(graders) as grader:

        async def work() -> None:
            async with AsyncExitStack() as stack:
                for engine in engines:
                    await stack.enter_async_context(aclosing(engine))
                client = await stack.enter_async_context(JudgeClient(*judge))
                sampler = Sampler(
                    engines,
                    codec,
                    Toolbox(client, codec.format),
                    grader,
                    sampling_of(recipe),
                    recipe.reward,
                    recipe.keep_filter_traces,
                )
                await sample_problems(problems_of(rows), sampler, out, on_progress)

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
