"""`rstar2 serve`: starts, watches and stops a vLLM server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli import common
from rstar2.cli.common import err, examples, out

EPILOG = examples(
    ("serve a trained model on this machine", "rstar2 serve runs/demo"),
    ("one copy over 4 GPUs, 32K tokens", "rstar2 serve Qwen/Qwen3-14B --tp 4 --max-model-len 32768"),
    (
        "with a vLLM that is in an environment of its own",
        "rstar2 serve runs/demo --python .venv-vllm/bin/python",
    ),
    ("further arguments for vLLM", "rstar2 serve runs/demo -- --enforce-eager --dtype bfloat16"),
    ("only see the command", "rstar2 serve runs/demo --dry-run"),
    ("chat with it, measure it", "rstar2 chat --url http://127.0.0.1:8000"),
)


def command(
    model: common.ModelArgument,
    extra: Annotated[
        list[str] | None, typer.Argument(help="Arguments for vLLM, after --.", metavar="[-- ARGS]")
    ] = None,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    tp: Annotated[int, typer.Option(min=1, help="GPUs that share one copy of the model.")] = 1,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens that prompt and answer may have together.")
    ] = None,
    kv_gib: Annotated[int, typer.Option(min=1, help="GiB for the KV cache where there is no GPU.")] = 4,
    python: Annotated[
        Path | None,
        typer.Option(envvar="RSTAR2_VLLM_PYTHON", help="The interpreter of the environment with vLLM."),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Where vLLM's output goes; runs/serve by default.")] = None,
    ready_s: Annotated[float, typer.Option(min=1, help="Seconds it may take to load.")] = 900.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and end.")] = False,
) -> None:
    """Serve a model with vLLM."""
    from rstar2 import serve
    from rstar2.errors import UserError
    from rstar2.files import write_text
    from rstar2.prompts import FormatChoice

    log = log or Path("runs") / "serve" / f"{port}.log"
    model = serve.served_model(model)
    interpreter = str(python or sys.executable)
    vllm = serve.find_vllm(interpreter)
    if vllm is None:
        missing = f"vLLM is not installed beside {interpreter}"
        if not dry_run:
            raise UserError(missing, serve.install_hint())
        vllm = serve.VLLM(interpreter, serve.distribution_here(), "")
        err.print(f"{missing}; this is what {vllm.distribution} there would be told", soft_wrap=True)
    more = tuple(extra or ())
    template = serve.template_of(model, FormatChoice(format, force_format))
    if template is not None:
        template_file = log.with_suffix(".jinja").absolute()
        more = ("--chat-template", str(template_file), *more)
    settings = serve.ServeSettings(model, host, port, tp, max_model_len, kv_gib, more)
    line, environment = serve.vllm_command(vllm, settings)
    if dry_run:
        typer.echo(shlex.join([*(f"{name}={value}" for name, value in environment.items()), *line]))
        return
    serve.check_port(host, port)
    if template is not None:
        write_text(template_file, template)
    err.print(f"{vllm.distribution} {vllm.version} loads {model}; watch it: tail -F {log}", soft_wrap=True)
    with serve.running_server(line, environment, settings.url, log, ready_s) as process:
        out.print(f"[bold]{settings.url}[/] answers (pid {process.pid}); Ctrl-C ends it", soft_wrap=True)
        out.print(f"next: [cyan]rstar2 chat --url {settings.url}[/]", soft_wrap=True)
        process.wait()
        raise serve.server_ended(process, log)
