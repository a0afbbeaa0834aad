"""`rstar2 sft`: stage 0."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.common import examples, out

EPILOG = examples(
    ("the paper's stage 0", "rstar2 sft --model Qwen3-14B-Base/ --data sft.parquet --run runs/sft"),
    (
        "on a laptop, for a tiny model",
        "rstar2 sft --model runs/demo/base --data runs/demo/data/sft.parquet --profile laptop "
        "--set batch=16 --set lr=3e-3 --set epochs=1 --run runs/tiny",
    ),
    ("what would run", "rstar2 sft --model Qwen3-14B-Base/ --data sft.parquet --dry-run"),
)


def command(
    model: Annotated[Path, typer.Option(help="The model's folder, ChatML tokenizer included.")],
    data: Annotated[Path, typer.Option(help="Parquet or JSON lines with a `messages` column.")],
    run: Annotated[Path, typer.Option(help="The run's folder; a killed run goes on in it.")] = Path(
        "runs/sft"
    ),
    recipe: Annotated[str, typer.Option(help="A recipe file, or the name of one that comes along.")] = "sft",
    profile: Annotated[str | None, typer.Option(help="Hardware profile: laptop, or a file.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe key: a.b=c.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and VERL's command, and end.")
    ] = False,
) -> None:
    """Fine-tune a model on tool-use conversations with VERL's SFT trainer (stage 0)."""
    from rstar2.train.recipe import sft_recipe

    resolved = sft_recipe(profile, change or [], recipe)
    if dry_run:
        import shlex

        from rstar2.train.command import sft_command

        out.print_json(resolved.model_dump_json())
        folder = run.absolute()
        shown = sft_command(resolved, model, data, folder / "checkpoints", folder / "metrics-1.jsonl")
        typer.echo(shlex.join(shown.argv))
        return
    from rstar2.cli.training import Rows, need_training_extra
    from rstar2.errors import UserError
    from rstar2.runs import open_run
    from rstar2.train.inputs import check_model, conversations, digest, with_our_template
    from rstar2.train.stages import is_done, run_sft

    need_training_extra()
    check_model(model)
    rows = conversations(data)
    if len(rows) < resolved.batch:
        raise UserError(
            f"{data} has {len(rows)} conversations, a batch needs {resolved.batch}", "Set batch lower."
        )
    config = {
        "recipe": resolved.model_dump(mode="json"),
        "model": str(model.absolute()),
        "data": str(data.absolute()),
        "data_sha256": digest(data),
    }
    with open_run(run, "sft", config) as opened:
        if not is_done(run):
            out.print(f"trainer log: [cyan]tail -f {opened.logs}/sft.log[/]")
            base = with_our_template(model, run / "base")
            parquet = rows.store(run / "data.parquet")
            steps = len(rows) // resolved.batch * resolved.epochs
            with Rows() as board:
                board.begin("sft", "SFT", steps)

                def on_step(step: int, metrics: dict[str, float]) -> None:
                    board.step("sft", step, f"loss {metrics['train/loss']:.3f}")

                run_sft(resolved, model=base, data=parquet, folder=run, logs=opened.logs, on_step=on_step)
                board.end("sft", f"{len(rows)} conversations")
    out.print(f"model    [cyan]{run / 'model'}[/]")
    out.print(f"next     [cyan]rstar2 train --stage 1 --model {run / 'model'} --data train.parquet[/]")
