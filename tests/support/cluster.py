"""Stand-ins for Slurm, Ray and the rstar2 command, for the scripts in examples/cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from support.process_table import session
from support.waiting import TIMEOUT_S, wait_until

CLUSTER = Path(__file__).resolve().parents[2] / "examples" / "cluster"

_STAND_INS = {
    # Runs the command that follows srun's options on this machine.
    "srun": """
        while [[ $1 = --* ]]; do shift; done
        exec "$@"
    """,
    "scontrol": """
        if [ "$1" = show ]; then for n in $(seq "$SLURM_JOB_NUM_NODES"); do echo "node$n"; done; exit; fi
        echo "scontrol $*" >>"$CALLS"
        exit "${REQUEUE_CODE:-0}"
    """,
    "sbatch": """
        printf '%s\\n' "$@" >"$CALLS"
    """,
    "squeue": """
        date -d "@$JOB_END" +%FT%T
    """,
    "hostname": """
        echo 127.0.0.1
    """,
    "ray": """
        if [ "$1" = status ]; then [ ! -e "$FOLDER/ray-starts-slowly" ]; exit; fi
        echo "ray $1 $RAY_AUTH_TOKEN" >>"$CALLS"
        exec sleep 1000
    """,
    # Only `rstar2.train.verl.cluster`, which asks Ray, is replaced.
    "python": """
        if [ "$2" = rstar2.train.verl.cluster ]; then
            if [ ! -s "$FOLDER/cluster" ]; then echo '[8.0, 8.0]'; exit; fi
            answer=$(head -n 1 "$FOLDER/cluster")
            sed -i 1d "$FOLDER/cluster"
            echo "$answer"
            [ "$answer" != "" ]
            exit
        fi
        exec "$PYTHON" "$@"
    """,
    "rstar2": """
        case "$1 $2" in
            "judge up") echo "judge up $RSTAR2_JUDGE_TOKEN" >>"$CALLS"; echo $$ >"$FOLDER/judge"; exec sleep 1000 ;;
            "judge status") kill -0 "$(cat "$FOLDER/judge")"; exit ;;
            plan*) shift; printf '%s\\n' "$@" >"$FOLDER/plan-words"; cat "$FOLDER/plan.json" ;;
            *) exec "$PYTHON" "$FOLDER/trainer.py" "$@" ;;
        esac
    """,
}
# Does what the next line of `behaviour` says: `steps exit-code`. With `waits`, it exits after the first signal.
_TRAINER = """
    import json, os, signal, sys, time
    from pathlib import Path

    folder, words = Path(os.environ["FOLDER"]), sys.argv[1:]
    received = []
    for name in ("SIGUSR1", "SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), lambda number, _: received.append(signal.Signals(number).name))
    script = (folder / "behaviour").read_text().splitlines()
    (folder / "behaviour").write_text("\\n".join(script[1:]))
    steps, code, *waits = script[0].split()
    calls = open(os.environ["CALLS"], "a", buffering=1)
    calls.write(f"trainer {words[0]} judge-token {os.environ.get('RSTAR2_JUDGE_TOKEN')}\\n")
    (folder / "running").touch()
    while waits and len(received) < (2 if waits == ["waits-for-two"] else 1):
        time.sleep(0.02)
    if waits:
        (folder / "signalled").touch()
        time.sleep(0.3)
        calls.write(f"trainer got {' '.join(received)}\\n")
    stage = Path(words[words.index("--run") + 1]) / "stage1"
    stage.mkdir(parents=True, exist_ok=True)
    metrics = stage / "metrics-1.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    with metrics.open("a") as file:
        for step in range(done + 1, done + 1 + int(steps)):
            file.write(json.dumps({"step": step, "data": {"rstar2/pass_rate": 0.5}}) + "\\n")
    (folder / "running").unlink()
    sys.exit(int(code))
"""


class StandIns:
    """A folder with the stand-ins, the records of their calls, and a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self._started: list[subprocess.Popen[str]] = []
        self._calls = folder / "calls"
        self._calls.touch()
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name, text in _STAND_INS.items():
            (bin_folder / name).write_text(f"#!/bin/bash\n{textwrap.dedent(text)}")
            (bin_folder / name).chmod(0o755)
        (folder / "trainer.py").write_text(textwrap.dedent(_TRAINER))
        self.env = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "FOLDER": str(folder),
            "CALLS": str(self._calls),
            "PAUSE_S": "0",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_ON_NODE": "8",
            "SLURM_JOB_END_TIME": str(int(time.time()) + 3600),
        }

    def behaves(self, *lines: str) -> None:
        """Set what the trainer does at its next launches, one line per launch: `STEPS EXIT_CODE [waits]`.

        With `waits`, the trainer waits for a signal before it exits.
        """
        (self.folder / "behaviour").write_text("\n".join(lines))

    def behaves_really(self, words: list[str]) -> None:
        """Run the real `rstar2` with these arguments when the trainer is started for the first time."""
        trainer, first = self.folder / "trainer.py", self.folder / "first-start"
        first.touch()
        real = [sys.executable, "-m", "rstar2", *words]
        trainer.write_text(
            f"import os\nif os.path.exists({str(first)!r}):\n"
            f"    os.unlink({str(first)!r})\n    os.execv({sys.executable!r}, {real!r})\n"
            + trainer.read_text()
        )

    def cluster_has(self, *answers: str) -> None:
        """Set the next answers to requests for the nodes of the Ray cluster. An empty string means no answer."""
        (self.folder / "cluster").write_text("".join(f"{answer}\n" for answer in answers))

    def plans(self, *seconds: float) -> None:
        """Set the `signal_before_s` that `rstar2 plan --json` prints for each stage."""
        stages = {f"stage{n}": {"checkpoint": {"signal_before_s": s}} for n, s in enumerate(seconds, 1)}
        (self.folder / "plan.json").write_text(json.dumps({"stages": stages}))

    def start(self, script: str, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a script of examples/cluster with these arguments."""
        process = subprocess.Popen(
            [CLUSTER / script, *words],
            env={**self.env, **env},
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def stop(self) -> None:
        """End processes that a failed test left running."""
        for process in self._started:
            for pid in session(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()

    def train(self, script: str, **env: str) -> subprocess.Popen[str]:
        """Start a script with a training command."""
        return self.start(script, "rstar2", "train", "--stage", "1", "--run", str(self.run), **env)

    def running(self) -> None:
        """Wait until the trainer runs."""
        wait_until((self.folder / "running").exists)

    def called(self, name: str) -> list[str]:
        """Return the recorded calls that begin with `name`."""
        return [line for line in self._calls.read_text().splitlines() if line.startswith(name)]

    def words(self, path: str) -> list[str]:
        """Return the arguments of a stand-in's call, from its file."""
        return (self.folder / path).read_text().splitlines()


def wait_for_exit(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Return a script's exit code and standard error. Asserts that it left no process."""
    _, stderr = process.communicate(timeout=timeout_s)
    wait_until(lambda: not session(process.pid))
    return process.returncode, stderr


def send(process: subprocess.Popen[str], name: str) -> None:
    """Send a signal to a script but not to its children, as Slurm does with `--signal=B:`."""
    process.send_signal(signal.Signals[f"SIG{name}"])
