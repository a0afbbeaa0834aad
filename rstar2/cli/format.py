"""`rstar2 format`: shows the prompt and the tool replies as a model sees them."""

from __future__ import annotations

from typing import Annotated

import typer

from rstar2.cli import common
from rstar2.cli.common import examples, out

app = typer.Typer(
    name="format",
    help="Show a model's prompt, its tools and their replies as the model sees them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    epilog=examples(("for the demo's model", "rstar2 format show runs/demo")),
)


@app.callback()
def _group() -> None:
    # Without a callback, typer would leave out the name of the only command.
    pass


@app.command(
    epilog=examples(
        ("for the demo's model", "rstar2 format show runs/demo"),
        (
            "with a problem and a reply of your own",
            'rstar2 format show runs/demo --problem "2 + 2?" --reply 4',
        ),
        ("a format by itself, to check a file or a new tool", "rstar2 format show --format release"),
        ("for a model in another format", "rstar2 format show models/smollm2 --format listed-tools"),
        ("as JSON, for a program", "rstar2 format show runs/demo --json"),
    )
)
def show(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's folder, the folder of a run or stage that made it, or a hub id. Without a model, --format "
            "is shown with one token per byte.",
            metavar="MODEL",
        ),
    ] = None,
    problem: Annotated[str, typer.Option(help="The problem in the prompt.")] = "What is 6 times 7?",
    reply: Annotated[str, typer.Option(help="The output of the tool call.")] = "42",
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    as_json: common.AsJson = False,
) -> None:
    """Print the prompt that a model sees for a problem, and the reply that it sees after its first tool call."""
    import json

    from rstar2.engines.models import find_model
    from rstar2.engines.oracle import byte_codec
    from rstar2.errors import UserError
    from rstar2.judge.schema import RunResult
    from rstar2.loop.formats.format import default_format, read_format
    from rstar2.loop.formats.replies import result_text
    from rstar2.loop.turns.choose import FormatChoice, load_codec

    if model is not None:
        codec = load_codec(find_model(model) or model, FormatChoice(format, force_format))
    elif format is not None:
        # A format that takes the model's own template is shown with the default format's template.
        named = read_format(format, default_format().template)
        if named.family is not None:
            raise UserError(
                f"--format {format} uses the tokens of a family of models, so it can only be shown with a model",
                f"Name a model of that family: rstar2 format show MODEL --format {format}.",
            )
        codec = byte_codec(named, f"{format}, without a model")
    else:
        raise UserError("nothing to show", "Give a model, --format NAME|FILE, or both.")
    fmt = codec.format
    reply_text = result_text(RunResult(id="", outcome="ok", stdout=reply), fmt.layout, fmt.limits)
    prompt, turn = codec.prompt(fmt.messages(problem)), codec.tool_turn([reply_text])
    texts = [codec.tokenizer.decode(ids, skip_special_tokens=False) for ids in (prompt, turn)]
    if as_json:
        record = {"prompt_ids": prompt, "reply_ids": turn, "prompt": texts[0], "reply": texts[1]}
        typer.echo(json.dumps({"source": codec.source, "format": fmt.model_dump(), **record}, indent=2))
        return
    limits = fmt.limits
    out.print(f"format    {codec.source}", markup=False, soft_wrap=True)
    out.print(f"tools     {', '.join(fmt.tool_names) or 'none'}", markup=False, soft_wrap=True)
    out.print(
        f"a call    at most {limits.seconds:g} s and {limits.memory_mb} MiB\n"
        f"a reply   {fmt.layout} layout, at most {limits.characters} characters and {limits.traceback_lines} lines of "
        "a traceback",
        soft_wrap=True,
    )
    out.print(f"turns end with {codec.tokenizer.convert_ids_to_tokens(codec.end_id)}", markup=False)
    for title, ids, text in (("prompt", prompt, texts[0]), ("after a call", turn, texts[1])):
        out.print(f"\n── {title}, {len(ids)} tokens ──", style="bold")
        out.print(text, markup=False, soft_wrap=True)
