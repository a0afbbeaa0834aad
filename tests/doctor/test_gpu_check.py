"""Tests how `rstar2 doctor --gpu-check` runs, limits and reports checks. test_whole_gpu_check.py runs the real ones."""

from __future__ import annotations

import importlib
import json
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.process_table import stat
from support.waiting import wait_until
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.doctor.gpu_check import run as runner
from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, NotRun, Result, Settings
from rstar2.doctor.gpu_check.checks import CHECKS
from rstar2.doctor.gpu_check.private import scrubbed
from rstar2.doctor.gpu_check.report import SCHEMA, Report
from rstar2.doctor.gpu_check.run import CheckOptions, gpu_check, run_check
from rstar2.doctor.gpu_check.sizes import SIZES, largest, planned_tensors

TESTS = Path(__file__).resolve().parents[1]
LONG_S = 600.0


def check(name: str) -> Check:
    check: Check = importlib.import_module(f"support.gpu_checks.{name}").CHECK
    return check


@pytest.fixture(autouse=True)
def _children_find_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folders = tmp_path / "work", tmp_path / "logs"
    for folder in folders:
        folder.mkdir()
    return Settings("cpu", 1, *folders)


def numbers(result: Result) -> dict[str, Any]:
    return {number.name: number.value for number in result.measured.numbers}


def hide(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a package impossible to import in processes that are started later."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{package!r}] = None\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{TESTS}:{TESTS.parent}")


def on_gpu(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Returns the settings for a GPU with 80 GiB, of which 60 GiB are free. The model is the tiny one."""
    from rstar2.doctor.gpu_check.tools import model, training

    monkeypatch.setattr(model, "trained_size", lambda settings: model.TINY)
    for name, free in (("free_bytes", 60 << 30), ("total_bytes", 80 << 30)):
        monkeypatch.setattr(training, name, lambda settings, free=free: free)
    return Settings("cuda", 2, settings.work, settings.logs)


def has_ended(pid: int) -> bool:
    fields = stat(pid)
    return not fields or fields[0] in "ZX"


@pytest.mark.slow
def test_a_check_that_hangs_is_stopped_at_its_limit_with_all_it_started_and_says_where_it_was(
    settings: Settings,
) -> None:
    # The limit is long enough for the check to start its child on a busy machine.
    result = run_check(check("hangs"), settings, limit_s=20.0)
    assert result.outcome == "failed"
    assert "limit of 20 s" in result.reason
    assert "--limit" in result.remedy
    assert "wait_for_ever" in "\n".join(result.last_lines)
    assert has_ended(int((settings.logs / "child.pid").read_text()))
    assert numbers(result) == {"speed": 56.0}


def test_a_check_that_is_killed_is_explained(settings: Settings) -> None:
    result = run_check(check("killed"), settings, LONG_S)
    assert (result.outcome, result.reason) == ("failed", "the check's process was killed by SIGKILL")
    assert "out of memory" in result.remedy
    assert numbers(result) == {"speed": 12.0}


def test_a_check_that_raises_is_explained_by_its_log(settings: Settings) -> None:
    result = run_check(check("raises"), settings, LONG_S)
    assert result.outcome == "failed"
    assert result.reason.startswith("RuntimeError: CUDA out of memory")
    assert any("raises.py" in line for line in result.last_lines)
    assert numbers(result) == {"speed": 34.0}
    assert "| speed | 34 tokens/s |" in Report("cpu", [result]).markdown()


def test_a_check_that_finds_a_fault_says_what_it_saw(settings: Settings) -> None:
    result = run_check(check("finds_fault"), settings, LONG_S)
    assert (result.outcome, result.reason, result.remedy) == (
        "failed",
        "they differ by 0.5 nats",
        "Install another version.",
    )
    assert numbers(result) == {"difference": 0.5}


def test_a_check_without_its_packages_is_not_run_and_says_what_installs_them(settings: Settings) -> None:
    result = run_check(check("lacks"), settings, LONG_S)
    assert (result.outcome, result.reason) == ("not run", "not installed: no_such_package")
    assert "pip install" in result.remedy
    assert "[laptop]" in result.remedy
    on_gpu = run_check(check("lacks"), replace(settings, device="cuda"), LONG_S)
    assert "[gpu]" in on_gpu.remedy


@needs("verl")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("sft", "rensa"), ("rl", "rensa")])
def test_a_check_whose_command_lacks_a_package_is_not_run(
    name: str, package: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(package, tmp_path, monkeypatch)
    result = run_check(CHECKS[name], settings, LONG_S)
    assert (result.outcome, result.reason) == ("not run", f"not installed: {package}")
    assert "pip install" in result.remedy


@needs("verl")
@pytest.mark.slow
def test_training_without_vllm_on_a_gpu_is_not_run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.doctor.gpu_check.checks import rl
    from rstar2.doctor.gpu_check.tools import commands

    hide("vllm", tmp_path, monkeypatch)
    with pytest.raises(NotRun, match="not installed: vllm") as excinfo:
        commands.run(settings, "rl", rl.words_of(on_gpu(settings, monkeypatch)))
    assert "[gpu]" in excinfo.value.hint


def test_the_page_names_the_bound_of_all_checks() -> None:
    stops = runner.STOP_S + runner.END_S
    bound_s = runner._TORCH_S + sum(check.limit_s + stops for check in CHECKS.values())
    bound = f"{bound_s:,.0f} s"
    assert bound in (TESTS.parent / "docs/gpu-reports/README.md").read_text()


@pytest.fixture
def fake_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the real checks by fake ones."""
    names = ("passes", "killed", "lacks", "finds_fault", "passes")
    monkeypatch.setattr(runner, "CHECKS", {f"{name}{at}": check(name) for at, name in enumerate(names)})
    monkeypatch.setattr(runner, "ENVIRONMENT", "passes0")


@needs("torch")
@pytest.mark.slow
def test_the_rest_runs_after_a_failure_and_the_report_has_all_of_it(
    fake_checks: None, tmp_path: Path
) -> None:
    lines: list[str] = []
    code = gpu_check(CheckOptions(tmp_path, "cpu"), lines.append)
    assert code == 1
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    assert record["schema"] == SCHEMA
    assert record["title"] == "CPU stack, no GPU"
    outcomes = [each["outcome"] for each in record["checks"]]
    assert outcomes == ["passed", "failed", "not run", "failed", "passed"]
    page = (tmp_path / "gpu-check.md").read_text()
    assert "2 passed, 2 failed, 1 not run" in page
    assert "| speed | 1,234 tokens/s | 1,000 tokens/s | 1.23 |" in page
    assert "killed by SIGKILL" in page
    assert "`killed.log`, is empty" in page
    assert "The end of the check's log, `finds_fault.log`" in page
    assert f"report: {tmp_path / 'gpu-check.md'}" in lines[-1]
    assert (tmp_path / "gpu-check-logs" / "killed.log").exists()
    assert not (tmp_path / "gpu-check-work").exists()


@needs("torch")
@pytest.mark.slow
def test_a_run_without_a_failed_check_ends_with_0_and_only_named_checks_run(
    fake_checks: None, tmp_path: Path
) -> None:
    lines: list[str] = []
    assert gpu_check(CheckOptions(tmp_path, "cpu", checks=("lacks2",)), lines.append) == 0
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [each["name"] for each in record["checks"]] == ["passes", "lacks"]


INTERRUPTED = """
import sys
from support.gpu_checks import hangs, passes
from rstar2.doctor.gpu_check import __main__ as program, run
run.CHECKS, run.ENVIRONMENT = {"one": passes.CHECK, "two": hangs.CHECK, "three": passes.CHECK}, "one"
sys.exit(program.main())
"""


@needs("torch")
@pytest.mark.slow
def test_ctrl_c_ends_the_check_and_reports_what_ran_so_far(tmp_path: Path) -> None:
    words = [sys.executable, "-c", INTERRUPTED, "--device", "cpu", "--output", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    pid = tmp_path / "gpu-check-logs" / "child.pid"
    try:
        wait_until(lambda: (pid.exists() and pid.read_text() != "") or process.poll() is not None, LONG_S)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    assert process.returncode == 130, out
    assert has_ended(int(pid.read_text()))
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    assert record["interrupted"]
    reasons = [each["reason"] for each in record["checks"]]
    assert [each["outcome"] for each in record["checks"]] == ["passed", "not run", "not run"]
    assert reasons[1].startswith("Ctrl-C ended the check")
    assert [each["value"] for each in record["checks"][1]["measured"]["numbers"]] == [56.0]
    assert reasons[2] == "Ctrl-C came before the check began"
    assert "Ctrl-C ended the checks." in (tmp_path / "gpu-check.md").read_text()


def test_a_wrong_name_and_options_without_gpu_check_are_the_users_mistakes(tmp_path: Path) -> None:
    def error(*words: str) -> Any:
        result = CliRunner().invoke(app, ["doctor", *words])
        return result.exception

    unknown = error("--gpu-check", "--check", "atention", "--output", str(tmp_path))
    assert (unknown.message, unknown.exit_code) == (
        "--check atention is not a check; did you mean attention?",
        2,
    )
    assert set(CHECKS) <= set(re.findall(r"\w+", unknown.hint))
    without = error("--check", "update", "--keep")
    assert (without.message, without.exit_code) == ("--check, --keep needs --gpu-check", 2)
    assert error("--gpu-check", "--json").exit_code == 2


def test_the_help_names_every_check() -> None:
    from rstar2.cli.doctor import command

    option = command.__annotations__["check"]
    assert all(name in option for name in CHECKS if name != "environment")


HOME = str(Path.home())


@pytest.mark.parametrize(
    ("text", "scrubbed_text"),
    [
        ('File "/home/anna/code/rstar2/train/launch.py", line 3', 'File "…/launch.py", line 3'),
        ("saved to /data/anna/models", "saved to …/models"),
        ("~/models/mine is full", "…/mine is full"),
        (
            "http://10.1.2.3:8000/health and http://127.0.0.1:8000/v1/models",
            "http://ADDRESS:8000/health and http://127.0.0.1:8000/v1/models",
        ),
        ("HF_TOKEN=hf_abcdefgh", "HF_TOKEN=***"),
        ('"api_key": "sk-123456789"', '"api_key": "***"'),
        ("1/2 done, 3 tokens/s", "1/2 done, 3 tokens/s"),
        ("12 tokens: 4096 of 8192", "12 tokens: 4096 of 8192"),
    ],
)
def test_what_is_private_is_taken_out(text: str, scrubbed_text: str) -> None:
    assert scrubbed(text) == scrubbed_text


def test_names_of_the_machine_and_secrets_of_the_environment_are_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.lab.example.org")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("USER", "anna")
    monkeypatch.setenv("LOGNAME", "anna")
    text = scrubbed("(node17 pid=3) anna sent 0123456789abcdef to node17.lab.example.org, banana")
    assert text == "(HOST pid=3) USER sent *** to HOST, banana"


def test_the_model_of_the_update_is_the_largest_that_the_plan_says_fits() -> None:
    def name(free_gib: float) -> str | None:
        size = largest(SIZES, 16_384, 1, int(free_gib * 2**30))
        return size.name if size else None

    names = [name(gib) for gib in (1, 12, 24, 48, 96, 192)]
    assert names[0] is None
    assert names[-1] == SIZES[-1].name
    order = [size.name for size in SIZES]
    assert [order.index(each) for each in names[1:] if each] == sorted(
        order.index(each) for each in names[1:] if each
    )
    assert [planned_tensors(size, "cuda", 4096, 1) for size in SIZES] == sorted(
        planned_tensors(size, "cuda", 4096, 1) for size in SIZES
    )


@needs("torch")
@pytest.mark.slow
def test_a_larger_model_has_a_text_for_every_token_it_can_write(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from rstar2.data import builtin
    from rstar2.doctor.gpu_check.sizes import Size
    from rstar2.doctor.gpu_check.tools import model
    from rstar2.loop.turns.choose import load_codec

    messages = builtin.FORMAT.messages("What is 12 + 34?")
    tiny = load_codec(model.random_model(settings))
    prompt = tiny.prompt(messages)
    endings = json.loads((settings.work / "model" / "generation_config.json").read_text())
    (settings.work / "model").rename(settings.work / "tiny")
    size = Size("small", 64, 128, 2, 4, 2, 16, 3000)
    monkeypatch.setattr(model, "trained_size", lambda settings: size)
    folder = model.random_model(settings)
    codec, tokenizer = load_codec(folder), AutoTokenizer.from_pretrained(folder)
    assert codec.prompt(messages) == prompt
    assert len(tokenizer) == AutoConfig.from_pretrained(folder).vocab_size == size.vocab
    assert all(tokenizer.decode([token]) for token in range(len(tokenizer)))
    trained = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(each.numel() for each in trained.parameters()) == size.shape.parameters
    assert {str(each.dtype) for each in trained.parameters()} == {"torch.bfloat16"}
    assert json.loads((folder / "generation_config.json").read_text()) == endings


@needs("verl")
@pytest.mark.slow
def test_the_commands_for_a_gpu_are_understood_by_train_and_sft(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.commands import rstar2

    from rstar2.doctor.gpu_check.checks import rl, sft
    from rstar2.doctor.gpu_check.tools import model, training

    with_gpu = on_gpu(settings, monkeypatch)
    words = rl.words_of(with_gpu)
    assert "hardware.engine_memory_share=0.26" in words
    monkeypatch.setattr(training, "free_bytes", lambda settings: 0)
    assert rl.words_of(with_gpu) == words, "the command is the same after the kill"
    result = rstar2(*words, "--dry-run")
    assert result.code == 0, result.stderr
    assert '"device": "cuda"' in result.stdout
    data = settings.work / "conversations.jsonl"
    sft._write_conversations(data, model.random_model(with_gpu))
    result = rstar2(*training.sft_words(with_gpu, settings.work / "sft", data, 8, 512), "--dry-run")
    assert result.code == 0, result.stderr


def test_engine_and_trainer_that_disagree_are_found() -> None:
    from rstar2.doctor.gpu_check.tools.training import AGREEMENT, add_agreement

    def wrong(*kls: float) -> int:
        return len(add_agreement(Measurements(), [{"rollout_corr/kl": kl} for kl in kls]))

    assert wrong(0.001, -0.01) == 0
    assert wrong(0.001, -2 * AGREEMENT) == 1
    assert wrong(float("nan")) == 1
    assert len(add_agreement(Measurements(), [{}])) == 1


@needs("torch")
def test_a_step_that_was_lost_or_repeated_shows_in_the_weights(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from rstar2.doctor.gpu_check.checks.resume import MOST_OFF, _off
    from rstar2.doctor.gpu_check.tools.training import RATE, STEPS

    base = {"one": torch.randn(8, 8), "two": torch.randn(8)}
    save_file(base, tmp_path / "model.safetensors")

    def off(steps: int) -> float:
        trained = tmp_path / str(steps)
        trained.mkdir()
        decayed = {name: tensor * (1 - RATE) ** steps for name, tensor in base.items()}
        save_file(decayed, trained / "model.safetensors")
        return _off(tmp_path, trained, (1 - RATE) ** STEPS)

    assert off(STEPS) < MOST_OFF
    assert off(STEPS - 1) > 100 * MOST_OFF
    assert off(STEPS + 1) > 100 * MOST_OFF


@needs("torch")
def test_attention_that_masks_wrongly_is_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from rstar2.doctor.gpu_check.checks import attention

    sound = attention._padded

    def unmasked(model: Any, rows: list[Any]) -> list[Any]:
        def ignores_mask(ids: Any, attention_mask: Any, position_ids: Any) -> Any:
            return model(ids, position_ids=position_ids)

        return sound(ignores_mask, rows)

    sound_measurements = Measurements()
    attention.run(settings, sound_measurements)
    assert "agree" in sound_measurements.summary
    monkeypatch.setattr(attention, "_padded", unmasked)
    with pytest.raises(CheckFailed, match="padding changes log-probabilities"):
        attention.run(settings, Measurements())


@needs("torch")
@pytest.mark.slow
async def test_a_tool_call_is_forced_and_an_error_of_vllm_is_reported_with_the_speeds(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.servers.chat_standin import ChatStandIn
    from support.servers.vllm_standin import serving

    from rstar2.doctor.gpu_check.checks import serve
    from rstar2.doctor.gpu_check.tools.model import random_model
    from rstar2.loop.tools.python_code_with_standard_io import NAME

    async def add_speed(*arguments: Any) -> None:
        arguments[-1].add("speed with 1 in flight", 78.0, "tokens/s")

    async def passes(*_arguments: Any) -> None:
        pass

    def answer(_body: Any) -> dict[str, Any]:
        arguments = json.dumps({"code": serve.CODE, "input": ""})
        return {"content": "", "tool_calls": [{"function": {"name": NAME, "arguments": arguments}}]}

    monkeypatch.setattr(serve, "_add_speeds", add_speed)
    monkeypatch.setattr(serve, "_check_loop", passes)
    model, measurements = random_model(settings), Measurements()
    with serving(ChatStandIn(answer)) as endpoint:
        await serve._measure(settings, model, endpoint.url, measurements)
        start, literal = endpoint.requests[0]["structured_outputs"]["grammar"].split(" ", 2)[::2]
        assert start == "root"
        assert "\n" not in literal
        assert f"</reason>\n{serve._call()}" in json.loads(literal)
        endpoint.script = lambda _body: "no call"
        with pytest.raises(CheckFailed, match=r"its parser found \[\]"):
            await serve._measure(settings, model, endpoint.url, measurements)
        endpoint.busy_answers = 1
        with pytest.raises(CheckFailed, match="HTTP 503: warming up") as excinfo:
            await serve._measure(settings, model, endpoint.url, measurements)
    assert "gpu-check-logs/vllm" in excinfo.value.hint
    assert [number.value for number in measurements.numbers] == [78.0] * 3


@needs("torch")
def test_a_driver_without_a_torch_that_can_use_it_is_explained(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from rstar2.doctor.gpu_check.checks import environment, update

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment, "gpu_names", lambda: ["NVIDIA H100 80GB HBM3, 81559 MiB"])
    with_gpu = Settings("cuda", 1, settings.work, settings.logs)
    measurements = Measurements()
    with pytest.raises(CheckFailed, match="cannot use the GPUs") as excinfo:
        environment.run(with_gpu, measurements)
    assert measurements.numbers[0].value == "1 × NVIDIA H100 80GB HBM3, 81559 MiB"
    assert "pytorch.org" in excinfo.value.hint
    with pytest.raises(NotRun, match="torch cannot use a GPU"):
        update.run(with_gpu, Measurements())


def test_results_survive_json() -> None:
    result = Result("a", "A", "failed", 1.5, 3.0, "why", "what helps", last_lines=["line"])
    result.measured.add("memory", 2.0, "GiB", planned=1.0)
    assert Result.of(json.loads(json.dumps(result.record()))) == result
