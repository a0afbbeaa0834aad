"""Tests that the root cause of a failure is read from a log, with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.train.trainer.causes import OWN_PREFIX, find_cause

RAY = "\x1b[36m(WorkerDict pid=12, ip=10.0.0.3)\x1b[0m "


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: FileNotFoundError: no such file",
        "\x1b[36m(TaskRunner pid=12)\x1b[0m FileNotFoundError: no such file",
        "FileNotFoundError: no such file",
    ],
)
def test_the_cause_is_found_behind_the_prefixes_of_ray_and_torch(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"Error executing job with overrides: [...]\n{line}\nsome last words\n")
    assert find_cause(log).line == "FileNotFoundError: no such file"


def test_a_warning_that_rstar2_wrote_to_the_log_is_not_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    warning = f"{OWN_PREFIX}warning: step 5: the judge lost calls: No space left on device"
    log.write_text(f"{warning}\nthe trainer's last line\n{warning}\n")
    assert find_cause(log).line == "the trainer's last line"
    log.write_text(f"{warning}\n")
    assert find_cause(log, exit_code=-9).line == "no output"


@pytest.mark.parametrize(
    ("root", "helps"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.94 GiB. GPU 3 has a total of",
            "hardware.offload=all",
        ),
        ("ZeroDivisionError: float division by zero", "mismatch_kl"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 5.94 GiB", "hardware.update_tokens"),
        (
            "ValueError: To serve at least one request with the models's max seq len (10240), (1.25 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.9 GiB)",
            "engine_memory_share",
        ),
        ("OSError: [Errno 28] No space left on device: 'model_world_size_8_rank_0.pt'", "checkpoint.keep"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos [Errno 28]",
            "free disk space",
        ),
        ("RuntimeError: basic_ios::clear: iostream error", "free disk space"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
            "free disk space",
        ),
        (
            "RuntimeError: PytorchStreamWriter failed writing file data/7: file write failed",
            "could not be written",
        ),
        (
            "safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on "
            "device (os error 28)",
            "disk is full",
        ),
        ("OSError: [Errno 122] Disk quota exceeded: 'optim_world_size_8_rank_3.pt'", "disk is full"),
        ("ray.exceptions.OutOfDiskError: Local disk is full", "disk is full"),
        (
            "rstar2.errors.Failure: not enough disk space for the checkpoint of step 20: it needs 165.1 GiB, but the "
            "disk of /runs/stage1/checkpoints/global_step_20/actor has 12.0 GiB free. The checkpoint was not written",
            "disk is full",
        ),
        (
            "A worker died or was killed while executing a task by an unexpected system error: the node was "
            "running low on memory",
            "machine is out of memory",
        ),
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLGATHER)",
            "nccl_timeout_s",
        ),
        (
            "rstar2.judge.client.http.JudgeError: step 7: rollouts that lost a tool call: 40, for 1800 s",
            "Start the judge",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "nvidia-smi"),
        (
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[key])",
            "wandb login",
        ),
        ("Exception: The current node timed out during startup. This could happen", "too busy"),
        ("The worker failed to register to the raylet within 60 s", "worker_start_s"),
    ],
)
def test_a_root_cause_comes_before_the_errors_that_follow_from_it(
    tmp_path: Path, root: str, helps: str
) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"step:3 - actor/entropy:0.2\n{RAY}{root}\n{RAY}Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError: ray::TaskRunner.run() (pid=9)\n"
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2\n"
    )
    cause = find_cause(log)
    assert cause.line == root
    assert helps in cause.remedy


def test_memory_comes_before_the_timeouts_of_the_ranks_that_waited_for_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL\n"
        f"{RAY}torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    assert "CUDA out of memory" in find_cause(log).line


def test_an_error_that_is_not_known_comes_before_those_of_processes_that_saw_it_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"{RAY}KeyError: 'prompts'\nray.exceptions.ActorDiedError: The actor died unexpectedly\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    assert find_cause(log).line == "KeyError: 'prompts'"
    assert find_cause(log).remedy == ""


def test_an_engine_that_died_comes_before_verls_word_on_the_step_without_rollouts(tmp_path: Path) -> None:
    died = (
        "rstar2.loop.agent.RolloutError: VERL's rollout server failed: The actor died unexpectedly before it"
    )
    log = tmp_path / "log"
    log.write_text(
        f"{RAY}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        f"{RAY}{died}\nray.exceptions.RayTaskError(RuntimeError): ray::TaskRunnerV1.run() (pid=9)\n"
        "RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.\n"
    )
    assert find_cause(log).line == died
    assert "A rollout engine ended" in find_cause(log).remedy


def test_rollouts_that_fail_are_the_cause_though_each_left_its_own_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    message = "rstar2.errors.Failure: step 7: rollouts that failed: 9 (9 x engine: out of memory), more than"
    log.write_text(
        f"{RAY}rstar2.loop.agent.RolloutError: VERL's rollout server failed: The actor died unexpectedly before it\n"
        f"{RAY}ValueError: an engine's own\nray.exceptions.RayTaskError(Failure): ray::TaskRunnerV1.run() (pid=9)\n"
        f"{message}\nthe last lines of all\n"
    )
    assert find_cause(log).line == message
    assert "same command then continues" in find_cause(log).remedy


def test_a_trainer_that_was_killed_and_could_not_say_so_is_told_as_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step:3 - actor/entropy:0.2\n")
    assert "dmesg" in find_cause(log, exit_code=-9).remedy
    assert find_cause(log, start=log.stat().st_size).line == "no output"


def test_what_a_judge_that_was_away_for_a_while_left_in_the_log_is_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step 3: left out before selection: 2 x JudgeError at 10.0.0.1\nKeyError: 'prompts'\n")
    assert find_cause(log).line == "KeyError: 'prompts'"
