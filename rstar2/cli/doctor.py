"""`rstar2 doctor`: checks what this machine can run. With --gpu-check it trains and serves a random model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from rstar2.cli.common import AsJson, examples, out
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.doctor.finding import Finding

EPILOG = examples(
    ("check this machine", "rstar2 doctor"),
    ("for a script: `laptop_ready` says whether the demo can run", "rstar2 doctor --json > machine.json"),
    (
        "first on a GPU machine: takes about ten minutes and writes a report to paste into an issue",
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
            help="Check a GPU machine with a random Qwen3, and write a report. The checks: attention; memory and speed "
            "of an update, compared with the plan; vLLM and a tool call; SFT; RL; resume after a kill.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="With --gpu-check: folder for gpu-check.md, gpu-check.json and logs; by default the current one."
        ),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(
            help="With --gpu-check: cuda (GPUs by NVIDIA or AMD) or cpu. The default, auto, uses GPUs if there are "
            "any."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="With --gpu-check: number of GPUs that training uses; by default 1."),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="With --gpu-check: run only this check: attention, update, serve, sft, rl or resume. Repeatable."
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="With --gpu-check: seconds that each check may take; by default each check has its "
            "own limit.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --gpu-check: keep the models and runs that the checks make.")
    ] = False,
) -> None:
    """Check what this machine can run, and show the commands that fix what is missing.

    The exit code is 0 if every installed extra can run, else 1. Extras that are not installed do not matter. In the
    JSON output, `laptop_ready` says whether `rstar2 demo` can run. A finding is `broken` if it prevents something that
    is installed from running. With --gpu-check, the exit code is 1 if a check failed. A check that cannot run here is
    reported as not run.
    """
    if gpu_check:
        if as_json:
            raise UserError(
                "--json and --gpu-check exclude each other",
                "Leave out --json; --gpu-check writes gpu-check.json.",
            )
        from rstar2.doctor.gpu_check.run import CheckOptions
        from rstar2.doctor.gpu_check.run import gpu_check as run

        options = CheckOptions(output or Path(), device or "auto", gpus or 1, tuple(check or ()), limit, keep)
        raise typer.Exit(run(options, lambda text: out.print(text, markup=False, soft_wrap=True)))
    gpu_options = {
        "--output": output,
        "--device": device,
        "--gpus": gpus,
        "--check": check,
        "--limit": limit,
        "--keep": keep,
    }
    if without_effect := [name for name, value in gpu_options.items() if value]:
        raise UserError(
            f"{', '.join(without_effect)} needs --gpu-check",
            f"Add --gpu-check, or leave out {' and '.join(without_effect)}.",
        )
    _examine(as_json)


def _examine(as_json: bool) -> None:
    from rstar2.doctor.examine import examine
    from rstar2.doctor.finding import installation_works, laptop_ready

    findings = examine()
    ready, works = laptop_ready(findings), installation_works(findings)
    if as_json:
        import json
        from dataclasses import asdict

        record = {"laptop_ready": ready, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        _show(findings)
        if not works:
            out.print("[red]What is installed cannot run yet:[/] first fix everything marked ✗.")
        elif ready:
            out.print("[green]The demo can run on this machine.[/] Next: [cyan]rstar2 demo[/]")
        else:
            complete = [
                each.name.removeprefix("extra ")
                for each in findings
                if each.state == "ok" and each.name.startswith("extra ")
            ]
            extras = f"the extras {', '.join(complete)}" if complete else "the package without extras"
            out.print(
                f"[green]What is installed can run:[/] {extras}. The commands above install the other extras. "
                "[cyan]rstar2 demo[/] needs the extra `laptop`.",
                highlight=False,
            )
    raise typer.Exit(0 if works else 1)


def _show(findings: list[Finding]) -> None:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    columns = ("", Column("checked", no_wrap=True), Column("result", overflow="fold"))
    table = Table(*columns, box=box.SIMPLE_HEAD)
    fixes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for finding in findings:
        missing = "[red]✗[/]" if finding.broken else "[dim]–[/]"
        mark = {"ok": "[green]✓[/]", "scarce": "[yellow]![/]", "missing": missing}[finding.state]
        table.add_row(mark, finding.name, Text(finding.found))
        if finding.state != "ok":
            fixes.setdefault((finding.fix, finding.commands), []).append(finding.name)
    out.print(table)
    if fixes:
        legend = "✓ as it should be   ! less than recommended   – missing"
        broken = "   ✗ installed, but broken" if any(finding.broken for finding in findings) else ""
        out.print(f"{legend}{broken}\n", style="dim")
    # Not in the table, so that a command is one line and can be copied.
    for (advice, commands), names in fixes.items():
        out.print(f"[bold]{', '.join(names)}:[/] {escape(advice)}".rstrip())
        for command in commands:
            out.print(Text(command, "cyan"), soft_wrap=True)
        out.print()
