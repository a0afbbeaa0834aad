"""`rstar2 doctor`: checks what this machine can do; with --gpu-check, by training and serving a random model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rstar2.cli.common import AsJson, examples, out
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.doctor.finding import Finding

EPILOG = examples(
    ("check this machine", "rstar2 doctor"),
    ("for a script: `laptop_ready` says whether the demo can run", "rstar2 doctor --json > machine.json"),
    (
        "the first thing on a GPU machine: about ten minutes, and a report to paste into an issue",
        "rstar2 doctor --gpu-check --output runs/gpu-check",
    ),
    ("only some of its checks", "rstar2 doctor --gpu-check --check attention --check update"),
    ("the same checks without a GPU, on a tiny model", "rstar2 doctor --gpu-check --device cpu"),
)
Device = Literal["auto", "cuda", "cpu"]


def command(
    as_json: AsJson = False,
    gpu_check: Annotated[
        bool,
        typer.Option(
            "--gpu-check",
            help="Run the checks of a GPU machine with a random Qwen3, and write a report: attention, memory and "
            "speed of an update beside the plan, vLLM and a tool call, SFT, RL, resume after a kill.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="With --gpu-check: folder for gpu-check.md, gpu-check.json and logs; by default this one."
        ),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(
            help="With --gpu-check: cuda (GPUs by NVIDIA or AMD) or cpu; by default auto: GPUs if there are any."
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="With --gpu-check: GPUs that training uses; by default 1.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="With --gpu-check: run only this check; may be repeated. Checks: attention, update, serve, sft, rl, "
            "resume."
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=1, help="With --gpu-check: seconds that each check may take; by default its own limit."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --gpu-check: keep the models and runs that the checks make.")
    ] = False,
) -> None:
    """Check what this machine can run, and show the commands that fix what is missing.

    The exit code is 0 if what is installed can run, with whichever extras, else 1. In --json, `laptop_ready` says
    whether the laptop path (`rstar2 demo`) can run, and `broken` of a finding that it keeps what is installed from
    running. With --gpu-check it is 1 if a check failed;
    checks that cannot run here are reported as not run.
    """
    if gpu_check:
        if as_json:
            raise UserError("--json is not for --gpu-check", "Read gpu-check.json, which it writes.")
        from rstar2.doctor.gpu_check.run import Asked
        from rstar2.doctor.gpu_check.run import gpu_check as run

        asked = Asked(output or Path(), device or "auto", gpus or 1, tuple(check or ()), limit, keep)
        raise typer.Exit(run(asked, lambda text: out.print(text, markup=False, soft_wrap=True)))
    given = {
        "--output": output,
        "--device": device,
        "--gpus": gpus,
        "--check": check,
        "--limit": limit,
        "--keep": keep,
    }
    if wrong := [name for name, value in given.items() if value]:
        raise UserError(f"{', '.join(wrong)} needs --gpu-check", "Add --gpu-check, or leave it out.")
    _examine(as_json)


def _examine(as_json: bool) -> None:
    from rstar2.doctor.examine import examine
    from rstar2.doctor.finding import installation_works, laptop_ready

    findings = examine()
    ready, works = laptop_ready(findings), installation_works(findings)
    if as_json:
        import json
        from dataclasses import asdict

        shown = {"laptop_ready": ready, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _show(findings)
        if not works:
            out.print("[red]What is installed cannot run yet:[/] first fix everything marked ✗.")
        elif ready:
            out.print("[green]The laptop path can run.[/] Next: [cyan]rstar2 demo[/]")
        else:
            whole = [
                each.name.removeprefix("extra ")
                for each in findings
                if each.state == "ok" and each.name.startswith("extra ")
            ]
            extras = f"the extras {', '.join(whole)}" if whole else "the package without extras"
            out.print(
                f"[green]What is installed can run:[/] {extras}. The commands above add the others; "
                "[cyan]rstar2 demo[/] needs the extra laptop.",
                highlight=False,
            )
    raise typer.Exit(0 if works else 1)


def _show(findings: list[Finding]) -> None:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    columns = ("", Column("What", no_wrap=True), Column("Found", overflow="fold"))
    table = Table(*columns, box=box.SIMPLE_HEAD)
    fixes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for finding in findings:
        missing = "[red]✗[/]" if finding.broken else "[dim]–[/]"
        mark = {"ok": "[green]✓[/]", "scarce": "[yellow]![/]", "missing": missing}[finding.state]
        table.add_row(mark, finding.name, Text(finding.found))
        if finding.state != "ok":
            fixes.setdefault((finding.fix, finding.commands), []).append(finding.name)
    out.print(table)
    # Not in the table, so that a command is one line and can be copied.
    for (words, commands), names in fixes.items():
        out.print(f"[bold]{', '.join(names)}:[/]", Text(words), soft_wrap=True)
        for command in commands:
            out.print(Text(command, "cyan"), soft_wrap=True)
        out.print()
