"""Tests of the trackers' own packages, as VERL uses them: one run per phase, also after restarts, and traces.

Each tracker runs in a separate process, as in a trainer. `make test-trackers` installs the packages. Backends that need
a server are not tested here: W&B, Weave's own server, SwanLab's cloud, ClearML's server, Volcengine and RL-Insight.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.train.trainer.tracking import tracker_environment

pytestmark = pytest.mark.slow
REPORT = """
import sys
from verl.utils.tracking import Tracking
import rstar2.train.verl.output.trackers
name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tracking = Tracking("rstar2", "night-stage2", [name], config={"trainer": {"limit": last}})
for step in range(first, last + 1):
    tracking.log({"critic/reward": step / 10}, step=step)
tracking.finish()
"""
SEND = """
import sys
from pathlib import Path
from verl.utils.tracking import Tracking
from rstar2.loop.trace import read_traces
from rstar2.train.verl.output.traces import TraceSender
tracking = Tracking("rstar2", "night-stage2", ["console"])
not_sent = TraceSender([sys.argv[1]], "night-stage2").send(read_traces(Path(sys.argv[2])))
tracking.finish()
print(not_sent, flush=True)
import os
os._exit(0)  # as a Ray process may end: nothing is left to what runs at an exit
"""


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    folder = tmp_path / "night" / "stage2"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two traces of step 7: one calls a tool, the other answers at once."""
    call = ToolCall(name="python", arguments={"code": "print(6*7)"}, status="ok", output="42", wall_s=0.1)
    turns = [
        Turn(text="<reason>compute", start=0, end=2, calls=[call]),
        Turn(text="<answer>42</answer>", start=3, end=5),
    ]
    common: dict[str, Any] = {"prompt_ids": [1], "response_ids": [2] * 5, "response_mask": [1] * 5, "step": 7}
    right = Trace(
        problem_id="a", problem="6*7?", turns=turns, finish="answer", reward=1.0, kept=True, **common
    )
    wrong = Trace(
        problem_id="b", problem="2+2?", turns=turns[1:], finish="answer", reward=0.0, kept=False, **common
    )
    path = tmp_path / "traces.jsonl"
    path.write_text(right.model_dump_json() + "\n" + wrong.model_dump_json() + "\n")
    return path


def run(script: str, stage: Path, tracker: str, *words: str, **more: str) -> str:
    """Returns the standard output of a process with the environment of a phase that begins after 300 steps."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env = environ | more
    env |= tracker_environment([tracker], stage, env, first_step=300)
    env["VERL_FILE_LOGGER_PATH"] = str(stage / "metrics-1.jsonl")
    result = subprocess.run(
        [sys.executable, "-c", script, tracker, *words], env=env, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def mlflow_rows(stage: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(stage.parent / "mlflow.db") as database:
        return database.execute(query).fetchall()


def test_mlflow_has_one_run_over_two_starts_with_other_settings(stage: Path) -> None:
    run(REPORT, stage, "mlflow", "1", "2")
    run(REPORT, stage, "mlflow", "2", "3")
    assert mlflow_rows(stage, "select name from runs") == [("night-stage2",)]
    steps = mlflow_rows(stage, "select distinct step from metrics where key = 'critic/reward' order by step")
    assert steps == [(301,), (302,), (303,)]
    assert not (Path.cwd() / "mlruns").exists(), "nothing is left in the current folder"


def test_a_new_run_in_the_same_folder_is_another_run(stage: Path) -> None:
    run(REPORT, stage, "mlflow", "1", "1")
    (stage / "tracker_runs.json").unlink()
    run(REPORT, stage, "mlflow", "1", "1")
    assert len(mlflow_rows(stage, "select run_uuid from runs")) == 2


def test_a_tracker_that_does_not_start_ends_training(stage: Path) -> None:
    (stage / "tracker_runs.json").write_text('{"mlflow": "0123456789abcdef0123456789abcdef"}')
    with pytest.raises(AssertionError, match="the tracker mlflow did not start"):
        run(REPORT, stage, "mlflow", "1", "1")


def trackio_rows(stage: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(stage.parent / "trackio" / "rstar2.db") as database:
        return database.execute(query).fetchall()


def test_trackio_has_one_run_over_two_starts(stage: Path) -> None:
    run(REPORT, stage, "trackio", "1", "2")
    run(REPORT, stage, "trackio", "3", "3")
    assert trackio_rows(stage, "select run_name, count(distinct run_id) from metrics group by run_name") == [
        ("night-stage2", 1)
    ]
    assert trackio_rows(stage, "select step from metrics order by step") == [(301,), (302,), (303,)]
    (stage / "tracker_runs.json").unlink()
    run(REPORT, stage, "trackio", "1", "1")
    assert trackio_rows(stage, "select count(distinct run_id) from metrics") == [(2,)]


@pytest.mark.parametrize(
    ("tracker", "offline", "messages_left"),
    [
        ("swanlab", {"SWANLAB_MODE": "local"}, "swanlab/run-*"),
        ("tensorboard", {}, "tensorboard/night-stage2/events.*"),
        ("wandb", {"WANDB_MODE": "offline"}, "wandb/offline-run-*"),
    ],
)
def test_others_write_into_the_runs_folder(
    stage: Path, tracker: str, offline: dict[str, str], messages_left: str
) -> None:
    run(REPORT, stage, tracker, "1", "1", **offline)
    run(REPORT, stage, tracker, "2", "2", **offline)
    folders = list(stage.parent.glob(messages_left))
    assert folders
    if tracker != "tensorboard":
        identity = json.loads((stage / "tracker_runs.json").read_text())[tracker]
        assert all(identity in folder.name for folder in folders)


def test_clearml_offline(stage: Path, tmp_path: Path) -> None:
    run(
        REPORT,
        stage,
        "clearml",
        "1",
        "1",
        CLEARML_OFFLINE_MODE="1",
        CLEARML_CACHE_DIR=str(tmp_path / "clearml"),
    )
    [metrics] = (tmp_path / "clearml").glob("offline/*/metrics.jsonl")
    assert "reward" in metrics.read_text()


def test_mlflow_gets_traces_as_spans(stage: Path, traces: Path) -> None:
    assert run(SEND, stage, "mlflow", str(traces)).split()[-1] == "0"
    spans = mlflow_rows(stage, "select name, type from spans order by name")
    assert spans == [
        ("python", "TOOL"),
        ("rollout", "AGENT"),
        ("rollout", "AGENT"),
        ("turn 1", "LLM"),
        ("turn 1", "LLM"),
        ("turn 2", "LLM"),
    ]
    tags = mlflow_rows(stage, "select key, value from trace_tags where key in ('step', 'reward', 'kept')")
    assert sorted(tags) == [
        ("kept", "False"),
        ("kept", "True"),
        ("reward", "0.0"),
        ("reward", "1.0"),
        ("step", "307"),
        ("step", "307"),
    ]


def test_trackio_gets_traces_as_messages(stage: Path, traces: Path) -> None:
    assert run(SEND, stage, "trackio", str(traces)).split()[-1] == "0"
    rows = trackio_rows(stage, "select run_name, step, messages, metadata from traces")
    assert [(name, step) for name, step, _, _ in rows] == [("night-stage2", 307)] * 2
    messages, metadata = json.loads(rows[0][2]), json.loads(rows[0][3])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert (messages[2]["content"], metadata["reward"], metadata["kept"]) == ("42", 1.0, True)


class _WeaveServer(BaseHTTPRequestHandler):
    """A server that answers the first requests of Weave's client, and records what it sends."""

    received: list[tuple[str, bytes]]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.received.append((self.path, body))
        viewer = {"username": "me", "defaultEntity": {"name": "me"}}
        versions = {"min_required_weave_python_version": "0.0.1", "trace_server_version": "99.0.0"}
        data = {"project": {"name": "rstar2"}, "viewer": viewer}
        content = json.dumps({**versions, "id": "x", "trace_id": "x", "digest": "x", "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        return None


def test_weave_sends_calls(stage: Path, traces: Path) -> None:
    """Weave's client is real. Its server is a stand-in, because the real one cannot be installed."""
    handler = type("Handler", (_WeaveServer,), {"received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        missing = run(
            SEND,
            stage,
            "weave",
            str(traces),
            WF_TRACE_SERVER_URL=url,
            WANDB_BASE_URL=url,
            WANDB_ENTITY="me",
            WANDB_API_KEY="a" * 40,
        )
        server.shutdown()
    assert missing.split()[-1] == "0"
    batches = [json.loads(body)["batch"] for path, body in handler.received if path.endswith("/complete")]
    calls = [call for batch in batches for call in batch]
    names = sorted(call["op_name"].split("/")[-1].split(":")[0] for call in calls)
    assert names == ["python", "rollout", "rollout"]
    [tool] = [call for call in calls if "/python:" in call["op_name"]]
    root = next(call for call in calls if call["id"] == tool["parent_id"])
    assert (tool["inputs"]["code"], tool["output"]["output"]) == ("print(6*7)", "42")
    assert (root["attributes"]["step"], root["attributes"]["reward"], root["output"]["kept"]) == (
        307,
        1.0,
        True,
    )
