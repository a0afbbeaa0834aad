"""`rstar2 train`: GRPO-RoC in stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rstar2.cli.common import examples, out

if TYPE_CHECKING:
    from rstar2.runs import Run
    from rstar2.train.recipe import StageRecipe

EPILOG = examples(
    ("stage 1 on one node of 8 GPUs", "rstar2 train --stage 1 --model runs/sft/model --data train.parquet"),
    (
        "stages 1 and 2, on 8 nodes of a Ray cluster, with a judge of its own",
        "rstar2 train --stage 1..2 --model runs/sft/model --data train.parquet --set hardware.nodes=8 "
        "--judge http://judge:8090",
    ),
    (
        "all three, each from the model of the one before",
        "rstar2 train --stage 1..3 --model runs/sft/model --data train.parquet --run runs/rl",
    ),
    (
        "on a laptop, for a tiny model",
        "rstar2 train --stage 1 --profile laptop --model runs/demo/sft/model "
        "--data runs/demo/stage1/train.parquet --set steps=5 --set rollout.prompts=8 --set rollout.rollouts=8 "
        "--set roc.down_sample_to_n=4 --set rollout.tokens=128 --set optim.lr=3e-4",
    ),
    (
        "the resolved recipe and VERL's command",
        "rstar2 train --stage 1..3 --model M --data train.parquet --dry-run",
    ),
)
_SHOWN = (
    ("rstar2/pass_rate", "pass rate", ".0%"),
    ("rstar2/failed_call_ratio_correct", "failed calls", ".1%"),
    ("rstar2/tokens", "tokens", ".0f"),
)


def command(
    stage: Annotated[str, typer.Option(help="1, 2, 3, or a range such as 1..3.")],
    model: Annotated[Path, typer.Option(help="The model's folder the first stage starts from.")],
    data: Annotated[Path, typer.Option(help="Parquet of `rstar2 data prepare`.")],
    run: Annotated[Path, typer.Option(help="The run's folder; a killed run goes on in it.")] = Path(
        "runs/train"
    ),
    recipe: Annotated[
        str | None, typer.Option(help="A recipe file for every stage. [default: stage1, stage2, stage3]")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Hardware profile: laptop, or a file.")] = None,
    judge: Annotated[
        str | None, typer.Option(help="A running judge's URL. [default: one of its own]")
    ] = None,
    judge_token: Annotated[str | None, typer.Option(envvar="RSTAR2_JUDGE_TOKEN", help="Its token.")] = None,
    judge_workers: Annotated[int, typer.Option(min=1, help="Workers of the judge of its own.")] = 2,
    solved: Annotated[
        Path | None,
        typer.Option(
            help="Stage 3: the `rstar2 eval` run over the training problems by the model it starts from."
        ),
    ] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe key: a.b=c.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipes and VERL's commands, and end.")
    ] = False,
) -> None:
    """Train a model by GRPO-RoC with VERL, one stage or several, each from the model of the one before."""
    from rstar2.train.recipe import stage_recipe

    numbers = _stages(stage)
    recipes = {number: stage_recipe(number, profile, change or [], recipe) for number in numbers}
    if dry_run:
        _dry_run(recipes, model, run)
        return
    from rstar2.cli.training import need_training_extra
    from rstar2.data.parquet import read_rows
    from rstar2.errors import UserError
    from rstar2.judge.queue.embedded_redis import server_binary
    from rstar2.runs import open_run
    from rstar2.train.inputs import check_model, digest
    from rstar2.train.solved import problems_of

    need_training_extra()
    check_model(model)
    rows = read_rows(data, "prompt")
    most = max(resolved.rollout.prompts for resolved in recipes.values())
    if len(rows) < most:
        raise UserError(f"{data} has {len(rows)} problems, a step needs {most}", "Set rollout.prompts lower.")
    if any(resolved.drop_solved for resolved in recipes.values()) and solved is None:
        problems_of(rows)
    if solved is not None:
        _traces(solved)
    if judge is None:
        server_binary()
        if any(resolved.hardware.nodes > 1 for resolved in recipes.values()):
            raise UserError(
                "on several nodes the judge must be reachable from all of them",
                "Start one (rstar2 judge up --host … --token …) and name it with --judge.",
            )
    config = {
        "recipes": {str(number): recipe.model_dump(mode="json") for number, recipe in recipes.items()},
        "model": str(model.absolute()),
        "data": str(data.absolute()),
        "data_sha256": digest(data),
        "solved": str(solved.absolute()) if solved else None,
    }
    with open_run(run, "train", config) as opened, _judge(judge, judge_token, run, judge_workers) as where:
        out.print(f"trainer logs: [cyan]tail -f {opened.logs}/*.log[/]")
        for number, resolved in recipes.items():
            model = _train(number, resolved, model, rows, opened, where, solved)
            from rstar2.files import write_json

            write_json(run / "model.json", {"path": str(model.relative_to(run))})
    out.print(f"model    [cyan]{model}[/]")
    out.print(f"next     [cyan]rstar2 eval aime25 --model {model}[/]")


def _train(
    number: int,
    recipe: StageRecipe,
    model: Path,
    rows: list[dict[str, Any]],
    run: Run,
    judge: tuple[str, str | None],
    solved: Path | None,
) -> Path:
    from rstar2.cli.training import Rows
    from rstar2.train.stages import is_done, run_stage

    folder = run.path / f"stage{number}"
    if is_done(folder):
        out.print(f"stage {number}: done before")
        return folder / "model"
    if recipe.drop_solved:
        rows = _unsolved(rows, recipe, model, run, folder, judge, solved)
    with Rows() as board:
        board.begin("stage", f"stage {number}", recipe.steps)

        def on_step(step: int, metrics: dict[str, float]) -> None:
            board.step(
                "stage", step, ", ".join(f"{label} {metrics[name]:{form}}" for name, label, form in _SHOWN)
            )

        trained = run_stage(
            recipe, model=model, rows=rows, folder=folder, judge=judge, logs=run.logs, on_step=on_step
        )
        board.end("stage", f"{len(rows)} problems")
    return trained


def _unsolved(
    rows: list[dict[str, Any]],
    recipe: StageRecipe,
    model: Path,
    run: Run,
    folder: Path,
    judge: tuple[str, str | None],
    solved: Path | None,
) -> list[dict[str, Any]]:
    """Leave out what the policy solves every time: as counted before (--solved), or counted now."""
    from rstar2.cli.training import Rows
    from rstar2.eval.progress import Progress
    from rstar2.trace import read_traces
    from rstar2.train.solved import sample_solved
    from rstar2.train.stages import drop_solved

    if solved is None:
        with Rows() as board:
            board.begin("solved", "training problems, to drop the solved", len(rows) * recipe.drop_solved)

            def follow(progress: Progress) -> None:
                board.step("solved", progress.done, f"{progress.tokens_per_s:.0f} tokens/s")

            traces = sample_solved(model, rows, recipe, judge, folder / "solved", run.logs, follow)
            board.end("solved", f"{recipe.drop_solved} samples each")
    else:
        traces = _traces(solved)
    kept = drop_solved(rows, read_traces(traces), recipe.drop_solved, recipe.rollout.prompts)
    out.print(f"{len(kept)} of {len(rows)} problems are not solved every time")
    return kept


def _traces(solved: Path) -> Path:
    """The traces of an `rstar2 eval` run of one benchmark.

    Raises:
        UserError: there are none, or those of several benchmarks.
    """
    from rstar2.errors import UserError

    found = [solved] if solved.is_file() else sorted(solved.glob("**/traces.jsonl"))
    if len(found) != 1:
        raise UserError(
            f"--solved {solved}: {len(found)} files of traces there, one is needed",
            "Give the `rstar2 eval` run over the training problems, or its traces.jsonl.",
        )
    return found[0]


def _judge(url: str | None, token: str | None, run: Path, workers: int) -> Any:
    import contextlib
    from collections.abc import Iterator

    from rstar2.judge.service.start import running_judge

    @contextlib.contextmanager
    def where() -> Iterator[tuple[str, str | None]]:
        if url is not None:
            yield url, token
            return
        with running_judge(run / "judge", workers=workers) as own:
            out.print(f"judge: isolation {own.isolation}, {workers} workers at {own.url}")
            yield own.url, own.token

    return where()


def _stages(text: str) -> list[int]:
    from rstar2.errors import UserError

    first, dots, last = text.partition("..")
    numbers = [first, last if dots else first]
    if not all(number in ("1", "2", "3") for number in numbers) or numbers[0] > numbers[1]:
        raise UserError(f"--stage {text}: no such stage", "Give 1, 2, 3, or a range such as 1..3.")
    return list(range(int(numbers[0]), int(numbers[1]) + 1))


def _dry_run(recipes: dict[int, StageRecipe], model: Path, run: Path) -> None:
    import shlex

    from rstar2.train.command import StagePaths, stage_command

    for number, recipe in recipes.items():
        folder = run.absolute() / f"stage{number}"
        paths = StagePaths(
            model=model,
            data=folder / "train.parquet",
            checkpoints=folder / "checkpoints",
            agent_loop=folder / "agent_loop.yaml",
            metrics=folder / "metrics-1.jsonl",
        )
        out.print(f"[bold]stage {number}[/]")
        out.print_json(recipe.model_dump_json())
        typer.echo(shlex.join(stage_command(recipe, paths).argv))
        model = folder / "model"
