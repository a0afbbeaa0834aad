"""Tests of `rstar2 plan`, whose output also begins every dry run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from support.train.trainer_metrics import write_steps
from support.waiting import TIMEOUT_S
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.cli.plan import warn_before_sft, warn_before_start
from rstar2.data.parquet import write_parquet
from rstar2.errors import UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.loop.formats.format import default_format
from rstar2.train.encoding import EncodedData
from rstar2.train.form_check import FormCheck
from rstar2.train.recipe_files import sft_recipe, stage_recipe
from rstar2.train.split import Split
from rstar2.train.start_checks import SftPlan, TrainPlan

QWEN3_14B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip


MESSAGES = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
DATA = {"train": "d", "sft": "sft.parquet"}
"""Data beside the folder of the fixture `model`: enough for one step of the paper's recipes."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with only a config.json, and data beside it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen3-14B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_14B))
    write_parquet(tmp_path / "d", [problem(number) for number in range(512)])
    write_parquet(tmp_path / "sft.parquet", [{"messages": MESSAGES}] * 128)
    return folder


def problem(number: int) -> dict[str, Any]:
    return {"id": str(number), "problem": "?", "answer": "1", "source": "made"}


def rstar2(*args: object) -> Result:
    return CliRunner().invoke(app, [*map(str, args)])


def test_json_needs_no_weights_and_no_training_packages(model: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'verl', 'ray', 'transformers'): sys.modules[name] = None\n"
        "from rstar2.cli import main; main()"
    )
    line = ["plan", "--model", str(model), "--stage", "1..3", "--profile", "64xmi300x", "--json"]
    result = subprocess.run(
        [sys.executable, "-c", code, *line], capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["model"]["parameters"] == 14_768_307_200
    assert set(record["hours"]) >= {"stage1", "stage2", "stage3"}
    for stage in record["stages"].values():
        checkpoint = stage["checkpoint"]
        assert checkpoint["signal_before_s"] == pytest.approx(stage["step"]["seconds"] + checkpoint["save_s"])


def test_the_table_shows_every_stage_and_what_does_not_fit(model: Path) -> None:
    result = rstar2("plan", "--model", model, "--stage", "1..2", "--profile", "1xh200")
    assert result.exit_code == 0, result.output
    assert "14,768,307,200 parameters" in " ".join(result.stdout.split())
    assert "stage 1" in result.stdout
    assert "stage 2" in result.stdout
    assert "KV cache" in result.stdout
    assert "! the update needs" in result.stdout
    assert "hours that a kill can cost" in result.stdout
    assert "seconds from the signal to the time limit" in result.stdout


def test_the_table_fits_80_columns_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell is wrapped. Every block has a heading with its unit, and the block of hours has a row with the total."""
    monkeypatch.setenv("COLUMNS", "80")
    line = ["plan", "--model", "Qwen/Qwen3-14B", "--profile", "8xh100"]
    result = rstar2(*line)
    assert result.exit_code == 0, result.output
    title, *lines = result.stdout.splitlines()
    assert title.strip() == "Qwen/Qwen3-14B (qwen3): 14,768,307,200 parameters, on 8 × H100"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    headings = [name for name, *cells in rows if not any(cells)]
    assert headings == [
        "update: GiB of one GPU", "rollouts: GiB of one GPU", "rollouts of one engine", "one step, in mode sync",
        "judge and agent loop", "checkpoints", "disk, GiB", "time, hours",
    ]  # fmt: skip
    cells = {name: cells for name, *cells in rows}
    assert len(cells) == len(rows), "a name stands in one row"
    assert all(all(row) for name, row in cells.items() if name not in headings), "no cell was wrapped"
    hours = [
        float(cell.replace(",", ""))
        for name in ("to sample problems before stage 3", "the stage's steps")
        for cell in cells[name]
    ]
    [total] = [each for each in lines if each.startswith("Hours in total: ")]
    assert float(total.split(": ")[1].rstrip(".").replace(",", "")) == pytest.approx(sum(hours), abs=0.3)
    assert {"peak, at most (of 79.1)", "tokens generated/s, per GPU", "tokens trained/s, per GPU"} <= set(
        cells
    )
    words = " ".join(result.stdout.split())
    assert "phase that needs more memory" in words
    assert "42,000 problems before stage 3" in words
    assert "problems before stage" not in " ".join(rstar2(*line, "--stage", "1").stdout.split())
    # Every row whose name does not say what it is has an explanation below the table.
    for name in ("gathered layers", "engine workspace", "trainer, not offloaded"):
        assert name in cells
        assert f" {name}: " in words


def test_a_hub_id_that_is_known_needs_no_network_and_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    result = rstar2("plan", "--model", "Qwen/Qwen3-14B", "--stage", "1", "--profile", "8xh100", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"]["parameters"] == 14_768_307_200


@contextmanager
def _hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A hub that serves the files of a folder. Yields its address and its list of requested paths."""
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words, directory=str(folder))

        def send_error(self, code: int, *words: Any) -> None:
            self.send_response(401 if code == 404 else code)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def end_headers(self) -> None:
            self.send_header("ETag", '"1"')
            self.send_header("X-Repo-Commit", "abc")
            super().end_headers()

        def log_message(self, *words: Any) -> None:
            if "/resolve/" in self.path:  # the library may also request a list of programs that call it
                requests.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def _asks_the_hub(url: str, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    hub_variables = {"HF_ENDPOINT": url, "HF_HOME": str(state / "hub"), "COLUMNS": "200"}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_")
    } | hub_variables
    words = (sys.executable, "-m", "rstar2", *words)
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


PLAN = ("plan", "--stage", "1", "--profile", "8xh100", "--json", "--model")


def test_of_another_model_of_the_hub_config_json_alone_is_read(model: Path, tmp_path: Path) -> None:
    files = tmp_path / "files" / "me" / "my-14b" / "resolve" / "main"
    shutil.copytree(model, files)
    with _hub(tmp_path / "files") as (url, requests):
        result = _asks_the_hub(url, tmp_path, *PLAN, "me/my-14b")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["model"]["parameters"] == 14_768_307_200
    assert set(requests) == {"/me/my-14b/resolve/main/config.json"}


@pytest.mark.parametrize("words", [PLAN, ("format", "show"), ("chat", "--prompt", "x", "--model")])
@pytest.mark.parametrize(
    ("hub_answers", "message"),
    [
        (True, "error: the hub has no model Qwen/Qwen3-9B"),
        (False, "error: cannot ask the hub for Qwen/Qwen3-9B ("),
    ],
)
def test_a_misspelt_hub_id_is_asked_for_once_and_corrected(
    words: tuple[str, ...], hub_answers: bool, message: str, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    with _hub(tmp_path / "files") as (url, requests):
        result = _asks_the_hub(
            url if hub_answers else "http://127.0.0.1:1", tmp_path, *words, "Qwen/Qwen3-9B"
        )
    assert result.returncode == 2
    assert result.stdout == ""
    [error, hint] = result.stderr.splitlines()
    assert error.startswith(message)
    assert error.endswith("; did you mean Qwen/Qwen3-8B?")
    assert ("hf auth login" in hint) is hub_answers
    assert ("Check the network, or give the folder of a model" in hint) is not hub_answers
    # Only a plan can use the shapes that rstar2 ships.
    assert ("Known without a network: Qwen/Qwen3-0.6B, " in hint) is (words == PLAN and not hub_answers)
    assert len(requests) == (1 if hub_answers else 0)


def test_stated_tokens_per_second_are_taken(model: Path) -> None:
    line = ["plan", "--model", model, "--stage", "1", "--profile", "8xh100", "--json"]
    slow, fast = (
        json.loads(rstar2(*line, "--generate-tps", tps, "--update-tps", tps).stdout)["hours"]["stage1"]
        for tps in (100, 1000)
    )
    assert 9 < slow / fast < 10.1


def test_a_runs_lengths_are_expected_again(model: Path) -> None:
    write_steps(model.parent / "rl" / "stage1", 2000.0)
    line = ["plan", "--model", model, "--stage", "1", "--profile", "8xh100"]
    assumed, like = (json.loads(rstar2(*line, *more, "--json").stdout) for more in ([], ["--like", "rl"]))
    assert (assumed["step"]["tokens"], like["step"]["tokens"]) == (16_384 * 4096, 16_384 * 2000)
    assert like["memory_per_gpu"]["update_total"] == assumed["memory_per_gpu"]["update_total"]
    assert like["hours"]["stage1"] < assumed["hours"]["stage1"]
    measurements = (
        "rollouts of 2,000 tokens, training on 50 % of the largest step's groups, 1.5 tool calls per rollout"
    )
    assert measurements in " ".join(rstar2(*line, "--like", "rl").stdout.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "Qwen3-14B", "--like", "."], "no training steps in ."),
        (["--model", "nowhere"], "no model folder at nowhere"),
        (["--model", "Qwen3-8B"], "no model folder at Qwen3-8B; did you mean Qwen/Qwen3-8B?"),
        (["--model", "Qwen3-14B", "--profile", "9xh100"], "no profile 9xh100"),
        (["--model", "Qwen3-14B", "--stage", "4"], "--stage 4: no such stage"),
        (["--model", "Qwen3-14B", "--set", "algorithm.objective=grop"], "did you mean grpo?"),
        (["--model", "Qwen3-14B", "--set", "hardware.gpu=h1000"], "did you mean h100?"),
        (
            ["--model", "Qwen3-14B", "--generate-tps", "inf"],
            "--generate-tps inf: must be above 0 and at most",
        ),
    ],
)
def test_a_mistake_is_refused_by_name(args: list[str], message: str, model: Path) -> None:
    error = rstar2("plan", *args).exception
    assert isinstance(error, UserError), error
    assert message in error.message


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_dry_run_begins_with_the_plan(verb: str, model: Path) -> None:
    stage = ["--stage", "1..3"] if verb == "train" else []
    result = rstar2(verb, *stage, "--model", model, "--data", DATA[verb], "--profile", "8xh100", "--dry-run")
    assert result.exit_code == 0, result.output
    title = " ".join(result.stdout.partition("┏")[0].split())
    assert title.endswith("/Qwen3-14B (qwen3): 14,768,307,200 parameters, on 8 × H100")
    assert "hours" in result.stdout or verb == "sft"
    if verb == "train":
        assert "the judge has 2 workers" in result.stdout
        assert "512 problems before stage 3" in " ".join(result.stdout.split())


def test_a_dry_run_of_sft_counts_its_data(model: Path, tokenizer: Any) -> None:
    data = model.parent / "sft.jsonl"
    data.write_text((json.dumps({"messages": MESSAGES}) + "\n") * 128)
    line = ["sft", "--model", model, "--data", data, "--profile", "8xh100", "--dry-run"]
    result = rstar2(*line)
    assert result.exit_code == 0, result.output
    assert "peak with this data" not in result.stdout
    assert "128 conversations; how many are too long or held out is unknown: " in result.stdout
    tokenizer.save_pretrained(model)
    result = rstar2(*line)
    at_most, expected = (
        float(next(row for row in result.stdout.splitlines() if name in row).split("│")[2].split()[0])
        for name in ("peak, at most", "peak with this data")
    )
    assert expected < at_most
    assert (
        "about 127 conversations to train on; the loss is measured on about 1 other, held out"
        in result.stdout
    )
    assert "these are estimates from 128 of 128 conversations" in result.stdout


@pytest.mark.parametrize("size", ["known", "unknown"])
@pytest.mark.parametrize("verb", ["plan", "train", "sft"])
def test_a_cluster_that_is_too_small_is_told_without_a_start(
    verb: str, size: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {
        "plan": [],
        "train": ["--stage", "1", "--data", "d", "--dry-run"],
        "sft": ["--data", DATA["sft"], "--dry-run"],
    }
    model_name = model if size == "known" or verb == "plan" else "Qwen/Qwen3-99B"
    words = (verb, "--model", model_name, *line[verb], "--profile", "64xh100")
    assert "the Ray cluster" not in rstar2(*words).output
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr("rstar2.train.hardware._gpus_by_node", lambda address: [8.0, 8.0])
    result = rstar2(*words)
    assert result.exit_code == 0, result.output
    message = "! the recipe needs 8 nodes with 8 GPUs each, but the Ray cluster at 10.0.0.1:6379 has 2 such"
    assert message in result.stdout


def test_a_later_stage_that_starts_from_no_stages_model_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = model.parent / "runs" / "rl"
    for folder in ("stage1/model", "stage1/models/step-20", "stage2/model", "sft/model"):
        shutil.copytree(model, run / folder)
    (run / "model.json").write_text('{"path": "stage2/model"}')
    (run.parent / "linked").symlink_to(run / "stage2")

    def warns_of_optimizer(model_path: Path, stage: str, *more: str, verb: str = "plan") -> bool:
        result = rstar2(verb, "--model", model_path, "--stage", stage, *more)
        assert result.exit_code == 0, result.output
        return "which is not the model of an earlier stage" in result.stdout

    for model_path in (model, run / "sft"):
        assert not warns_of_optimizer(model_path, "1..3")
        assert warns_of_optimizer(model_path, "3")
        assert warns_of_optimizer(model_path, "2..3", "--json")
        assert warns_of_optimizer(model_path, "3", "--data", "d", "--dry-run", verb="train")
    assert warns_of_optimizer(run / "stage2", "2"), "a stage is not before itself"
    for model_path in (run, run / "stage1", run / "stage2" / "model", run / "stage1" / "models" / "step-20"):
        assert not warns_of_optimizer(model_path, "3")
    assert not warns_of_optimizer(run.parent / "linked", "3")
    assert not warns_of_optimizer(run, "3", "--data", "d", "--dry-run", verb="train")
    monkeypatch.chdir(run / "stage2")
    assert not warns_of_optimizer(Path("model"), "3")
    data = model.parent / "d"
    assert warns_of_optimizer(Path("Qwen/Qwen3-99B"), "3", "--data", str(data), "--dry-run", verb="train"), (
        "models of unknown size get the warning too"
    )


@pytest.mark.parametrize(("stage", "is_told"), [(1, False), (3, True)])
def test_a_training_that_starts_says_it_too(
    stage: int, is_told: bool, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = TrainPlan(
        {stage: stage_recipe(stage, None, [])},
        model,
        model,
        default_format(),
        [],
        None,
        JudgeChoice(),
        {},
        {},
    )
    warn_before_start(plan, model)
    assert ("not the model of an earlier stage" in capsys.readouterr().out) == is_told


def test_a_run_of_weeks_is_named_by_the_plan_the_dry_run_and_the_start(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--model", model, "--profile", "8xh100", "--stage", "1..3"]
    plan = rstar2("plan", *line).stdout
    dry_run = rstar2("train", *line, "--data", "d", "--dry-run").stdout
    recipes = {number: stage_recipe(number, "8xh100", []) for number in (1, 2, 3)}
    warn_before_start(
        TrainPlan(recipes, model, model, default_format(), [], None, JudgeChoice(), {}, {}), model
    )
    for output in (plan, dry_run, capsys.readouterr().out):
        assert "! the run takes about 2," in output
        assert "use more machines (`--set hardware.nodes=8`)" in output
    assert "the run takes" not in rstar2("plan", *line, "--set", "hardware.nodes=8").stdout


def test_sft_that_starts_says_what_its_dry_run_says(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/")._replace(free=500 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    changes = ["hardware.nccl_timeout_s=60", "hardware.export_timeout_s=10"]
    words = [word for change in changes for word in ("--set", change)]
    dry_run = rstar2(
        "sft", "--model", model, "--data", "sft.parquet", "--profile", "8xh100", "--dry-run", *words
    ).stdout
    recipe, run = sft_recipe("8xh100", changes), Path("runs") / "sft"
    data = Path("encoded")
    data.mkdir()
    np.savez(data / "index.npz", lengths=[200] * 128)
    (data / "record.json").write_text(json.dumps({"form": FormCheck().as_json()}))
    encoded = EncodedData(data, "digest")
    parts = Split(
        encoded, np.arange(128), encoded, np.arange(0), too_long=0, cut_to_nothing=0, max_tokens=16384
    )
    plan = SftPlan(recipe, model, Path("sft.parquet"), default_format(), parts)
    warn_before_sft(plan, run)
    for output in (dry_run, capsys.readouterr().out):
        warnings = [line for line in output.splitlines() if line.startswith("!")]
        assert any("hardware.nccl_timeout_s = 60" in line for line in warnings), output
        assert any("hardware.export_timeout_s = 10" in line for line in warnings), output
        [disk] = [line for line in warnings if "the disk of the run's folder has 500.0 GiB free" in line]
        assert disk.endswith("free: choose another folder with --run"), "SFT's recipe has no checkpoint.keep"
    needed = float(disk.split("need ")[1].split(" GiB")[0])
    checkpoint = run / "checkpoints" / "global_step_1"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "model.pt").open("wb") as file:
        file.truncate(10 << 30)
    warn_before_sft(plan, run)
    assert f"need {needed - 10:.1f} GiB" in capsys.readouterr().out, (
        "the checkpoint of an earlier start needs no new space"
    )


def test_the_demos_dry_run_begins_with_its_plan(model: Path) -> None:
    result = rstar2("demo", "--dry-run")
    assert result.exit_code == 0, result.output
    title = result.stdout[: result.stdout.index("━")]
    assert "qwen3" in title
    assert "on 1 CPU rank" in " ".join(title.split())
    assert "per CPU rank" in result.stdout
    assert "GPU " not in result.stdout.partition("Hours in total")[0]


def test_a_disk_that_is_too_small_for_the_checkpoints_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/")._replace(free=500 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    line = ["train", "--model", model, "--data", "d", "--profile", "64xh100", "--run", "runs/x", "--dry-run"]
    output = rstar2(*line, "--stage", "1").stdout
    assert (
        "checkpoints and models need 550.2 GiB, but the disk of the run's folder has 500.0 GiB free" in output
    )
    assert "GiB free: use `--set checkpoint.keep=1`, or choose another folder with --run" in output
    assert "GiB free" not in rstar2(*line, "--stage", "1", "--set", "checkpoint.keep=1").stdout
    # The checkpoint of an earlier start needs no new space.
    stored_file = Path("runs/x/stage1/checkpoints/global_step_10/actor/model.pt")
    stored_file.parent.mkdir(parents=True)
    with stored_file.open("wb") as sparse:
        sparse.truncate(51 << 30)
    assert "GiB free" not in rstar2(*line, "--stage", "1").stdout


@pytest.mark.parametrize("words", [[], ["--set", "checkpoint.keep=1"]])
def test_fewer_checkpoints_are_not_suggested_if_they_do_not_fit_either(
    words: list[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/")._replace(free=100 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    line = ["train", "--model", model, "--data", "d", "--profile", "64xh100", "--run", "runs/x", "--dry-run"]
    output = rstar2(*line, "--stage", "1", *words).stdout
    assert "100.0 GiB free: choose another folder with --run" in output


def test_a_dry_run_of_a_model_that_is_not_here_says_that_it_has_no_plan(model: Path) -> None:
    result = rstar2("train", "--stage", "1", "--model", "Qwen/Qwen3-99B", "--data", "d", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "no plan: the shape of Qwen/Qwen3-99B is unknown" in result.output
    assert "verl.trainer.main_ppo" in result.stdout
