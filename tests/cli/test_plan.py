"""`rstar2 plan`, and the same at the top of every dry run."""

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


SAID = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
DATA = {"train": "d", "sft": "sft.parquet"}
"""Of the fixture `model`'s folder: as much as a step of the paper's recipes takes."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config.json and nothing else; beside it data."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen3-14B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_14B))
    write_parquet(tmp_path / "d", [problem(number) for number in range(512)])
    write_parquet(tmp_path / "sft.parquet", [{"messages": SAID}] * 128)
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
    ran = subprocess.run(
        [sys.executable, "-c", code, *line], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert record["model"]["parameters"] == 14_768_307_200
    assert set(record["hours"]) >= {"stage1", "stage2", "stage3"}
    for stage in record["stages"].values():
        saved = stage["checkpoint"]
        assert saved["signal_before_s"] == pytest.approx(stage["step"]["seconds"] + saved["save_s"])


def test_the_table_shows_every_stage_and_what_does_not_fit(model: Path) -> None:
    ran = rstar2("plan", "--model", model, "--stage", "1..2", "--profile", "1xh200")
    assert ran.exit_code == 0, ran.output
    assert "14,768,307,200 parameters" in ran.stdout
    assert "stage 1" in ran.stdout
    assert "stage 2" in ran.stdout
    assert "KV cache" in ran.stdout
    assert "! the update needs" in ran.stdout
    assert "hours that a kill can cost" in ran.stdout
    assert "signal before the time limit, s" in ran.stdout


def test_the_table_fits_80_columns_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell is wrapped, every block has a heading with its unit, and hours have a sum."""
    monkeypatch.setenv("COLUMNS", "80")
    line = ["plan", "--model", "Qwen/Qwen3-14B", "--profile", "8xh100"]
    ran = rstar2(*line)
    assert ran.exit_code == 0, ran.output
    title, *lines = ran.stdout.splitlines()
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
    assert "phase that needs more memory" in ran.stdout
    assert "42,000 problems before stage 3" in ran.stdout
    assert "problems before stage" not in rstar2(*line, "--stage", "1").stdout


def test_a_hub_id_that_is_known_needs_no_network_and_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    ran = rstar2("plan", "--model", "Qwen/Qwen3-14B", "--stage", "1", "--profile", "8xh100", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["model"]["parameters"] == 14_768_307_200


@contextmanager
def _hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A hub that has the files in a folder, and what it was asked for."""
    asked: list[str] = []

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
            if "/resolve/" in self.path:  # the library asks for a list of programs that may call it too
                asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def _asks_the_hub(url: str, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    told = {"HF_ENDPOINT": url, "HF_HOME": str(state / "hub"), "COLUMNS": "200"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | told
    words = (sys.executable, "-m", "rstar2", *words)
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


PLAN = ("plan", "--stage", "1", "--profile", "8xh100", "--json", "--model")


def test_of_another_model_of_the_hub_config_json_alone_is_read(model: Path, tmp_path: Path) -> None:
    files = tmp_path / "files" / "me" / "my-14b" / "resolve" / "main"
    shutil.copytree(model, files)
    with _hub(tmp_path / "files") as (url, asked):
        ran = _asks_the_hub(url, tmp_path, *PLAN, "me/my-14b")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["model"]["parameters"] == 14_768_307_200
    assert set(asked) == {"/me/my-14b/resolve/main/config.json"}


@pytest.mark.parametrize("words", [PLAN, ("format", "show")])
@pytest.mark.parametrize(
    ("reached", "said"),
    [
        (True, "error: the hub has no model Qwen/Qwen3-9B"),
        (False, "error: the hub cannot be asked for Qwen/Qwen3-9B ("),
    ],
)
def test_a_misspelt_hub_id_is_asked_for_once_and_corrected(
    words: tuple[str, ...], reached: bool, said: str, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    with _hub(tmp_path / "files") as (url, asked):
        ran = _asks_the_hub(url if reached else "http://127.0.0.1:1", tmp_path, *words, "Qwen/Qwen3-9B")
    assert ran.returncode == 2
    assert ran.stdout == ""
    [error, hint] = ran.stderr.splitlines()
    assert error.startswith(said)
    assert error.endswith("; did you mean Qwen/Qwen3-8B?")
    assert ("hf auth login" in hint) is reached
    assert ("Check the network, or give the folder of a model" in hint) is not reached
    # Only a plan can use the shapes that rstar2 ships.
    assert ("Known without a network: Qwen/Qwen3-0.6B, " in hint) is (words == PLAN and not reached)
    assert len(asked) == (1 if reached else 0)


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
    said = "rollouts of 2,000 tokens, 50 % of the largest step's groups trained on, 1.5 tool calls each"
    assert said in " ".join(rstar2(*line, "--like", "rl").stdout.split())


@pytest.mark.parametrize(
    ("args", "said"),
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
def test_a_mistake_is_refused_by_name(args: list[str], said: str, model: Path) -> None:
    error = rstar2("plan", *args).exception
    assert isinstance(error, UserError), error
    assert said in error.message


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_dry_run_begins_with_the_plan(verb: str, model: Path) -> None:
    stage = ["--stage", "1..3"] if verb == "train" else []
    ran = rstar2(verb, *stage, "--model", model, "--data", DATA[verb], "--profile", "8xh100", "--dry-run")
    assert ran.exit_code == 0, ran.output
    title = " ".join(ran.stdout.partition("┏")[0].split())
    assert title.endswith("/Qwen3-14B (qwen3): 14,768,307,200 parameters, on 8 × H100")
    assert "hours" in ran.stdout or verb == "sft"
    if verb == "train":
        assert "the judge has 2 workers" in ran.stdout
        assert "512 problems before stage 3" in " ".join(ran.stdout.split())


def test_a_dry_run_of_sft_counts_its_data(model: Path, tokenizer: Any) -> None:
    data = model.parent / "sft.jsonl"
    data.write_text((json.dumps({"messages": SAID}) + "\n") * 128)
    line = ["sft", "--model", model, "--data", data, "--profile", "8xh100", "--dry-run"]
    ran = rstar2(*line)
    assert ran.exit_code == 0, ran.output
    assert "peak with this data" not in ran.stdout
    assert "128 conversations; how many are too long or held out is unknown: " in ran.stdout
    tokenizer.save_pretrained(model)
    ran = rstar2(*line)
    at_most, expected = (
        float(next(row for row in ran.stdout.splitlines() if name in row).split("│")[2].split()[0])
        for name in ("peak, at most", "peak with this data")
    )
    assert expected < at_most
    assert (
        "about 127 conversations to train on; the loss is measured on about 1 other, held out" in ran.stdout
    )
    assert "these are estimates from 128 of 128 conversations" in ran.stdout


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
    named = model if size == "known" or verb == "plan" else "Qwen/Qwen3-99B"
    asked = (verb, "--model", named, *line[verb], "--profile", "64xh100")
    assert "the Ray cluster" not in rstar2(*asked).output
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr("rstar2.train.hardware._gpus_by_node", lambda address: [8.0, 8.0])
    ran = rstar2(*asked)
    assert ran.exit_code == 0, ran.output
    said = "! the recipe needs 8 nodes with 8 GPUs each, but the Ray cluster at 10.0.0.1:6379 has 2 such"
    assert said in ran.stdout


def test_a_later_stage_that_starts_from_no_stages_model_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = model.parent / "runs" / "rl"
    for made in ("stage1/model", "stage1/models/step-20", "stage2/model", "sft/model"):
        shutil.copytree(model, run / made)
    (run / "model.json").write_text('{"path": "stage2/model"}')
    (run.parent / "linked").symlink_to(run / "stage2")

    def told(named: Path, stage: str, *more: str, verb: str = "plan") -> bool:
        ran = rstar2(verb, "--model", named, "--stage", stage, *more)
        assert ran.exit_code == 0, ran.output
        return "which is not the model of an earlier stage" in ran.stdout

    for named in (model, run / "sft"):
        assert not told(named, "1..3")
        assert told(named, "3")
        assert told(named, "2..3", "--json")
        assert told(named, "3", "--data", "d", "--dry-run", verb="train")
    assert told(run / "stage2", "2"), "a stage is not before itself"
    for named in (run, run / "stage1", run / "stage2" / "model", run / "stage1" / "models" / "step-20"):
        assert not told(named, "3")
    assert not told(run.parent / "linked", "3")
    assert not told(run, "3", "--data", "d", "--dry-run", verb="train")
    monkeypatch.chdir(run / "stage2")
    assert not told(Path("model"), "3")
    data = model.parent / "d"
    assert told(Path("Qwen/Qwen3-99B"), "3", "--data", str(data), "--dry-run", verb="train"), (
        "of unknown size too"
    )


@pytest.mark.parametrize(("stage", "told"), [(1, False), (3, True)])
def test_a_training_that_starts_says_it_too(
    stage: int, told: bool, model: Path, capsys: pytest.CaptureFixture[str]
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
    assert ("not the model of an earlier stage" in capsys.readouterr().out) == told


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
    for said in (plan, dry_run, capsys.readouterr().out):
        assert "! the run takes about 2," in said
        assert "hardware.nodes=8" in said
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
    for said in (dry_run, capsys.readouterr().out):
        warnings = [line for line in said.splitlines() if line.startswith("!")]
        assert any("hardware.nccl_timeout_s = 60" in line for line in warnings), said
        assert any("hardware.export_timeout_s = 10" in line for line in warnings), said
        [disk] = [line for line in warnings if "the disk of the run's folder has 500.0 GiB free" in line]
        assert disk.endswith("free: choose another folder with --run"), "SFT's recipe has no checkpoint.keep"
    needed = float(disk.split("need ")[1].split(" GiB")[0])
    checkpoint = run / "checkpoints" / "global_step_1"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "model.pt").open("wb") as file:
        file.truncate(10 << 30)
    warn_before_sft(plan, run)
    assert f"need {needed - 10:.1f} GiB" in capsys.readouterr().out, (
        "what an earlier start wrote is there already"
    )


def test_the_demos_dry_run_begins_with_its_plan(model: Path) -> None:
    ran = rstar2("demo", "--dry-run")
    assert ran.exit_code == 0, ran.output
    title = ran.stdout[: ran.stdout.index("━")]
    assert "qwen3" in title
    assert "on 1 CPU rank" in " ".join(title.split())
    assert "per CPU rank" in ran.stdout
    assert "GPU " not in ran.stdout.partition("Hours in total")[0]


def test_a_disk_that_is_too_small_for_the_checkpoints_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage("/")._replace(free=500 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    line = ["train", "--model", model, "--data", "d", "--profile", "64xh100", "--run", "runs/x", "--dry-run"]
    said = rstar2(*line, "--stage", "1").stdout
    assert (
        "checkpoints and models need 550.2 GiB, but the disk of the run's folder has 500.0 GiB free" in said
    )
    assert "checkpoint.keep=1" in said
    assert "GiB free" not in rstar2(*line, "--stage", "1", "--set", "checkpoint.keep=1").stdout
    # What an earlier start has written needs no room again.
    stored = Path("runs/x/stage1/checkpoints/global_step_10/actor/model.pt")
    stored.parent.mkdir(parents=True)
    with stored.open("wb") as sparse:
        sparse.truncate(51 << 30)
    assert "GiB free" not in rstar2(*line, "--stage", "1").stdout


def test_a_dry_run_of_a_model_that_is_not_here_says_that_it_has_no_plan(model: Path) -> None:
    ran = rstar2("train", "--stage", "1", "--model", "Qwen/Qwen3-99B", "--data", "d", "--dry-run")
    assert ran.exit_code == 0, ran.output
    assert "no plan: the shape of Qwen/Qwen3-99B is unknown" in ran.output
    assert "verl.trainer.main_ppo" in ran.stdout
