"""Messages from a server's log: its progress while it loads, and the cause of its failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.errors import Failure, UserError
from rstar2.serve.causes import explained
from rstar2.serve.launch import stage

LINES = [
    ("OSError: [Errno 98] Address already in use", UserError, "its port is in use"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Failure, "out of memory"),
    ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", UserError, "gated"),
    ("OSError: You are trying to access a gated repo.", UserError, "gated"),
    ("RepositoryNotFoundError: 404 Client Error", UserError, "no such model"),
    (
        "401 Client Error. Repository Not Found for url: https://hub/api/models/no/such.",
        UserError,
        "no such model",
    ),
    ("If you are trying to access a private or gated repo, 401 Client Error", UserError, "no such model"),
    (
        "ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded",
        UserError,
        "be reached",
    ),
    (
        "ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than desired GPU memory",
        UserError,
        "other programs use the GPU's memory",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (40960), (6.25 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (2.1 GiB).",
        UserError,
        "KV cache is too small",
    ),
    ("RuntimeError: Failed to infer device type", UserError, "needs a GPU"),
    ("api_server.py: error: unrecognized arguments: --nope", UserError, "one of the arguments after --"),
    ("ValueError: Model architectures ['X'] are not supported for now.", UserError, "this kind of model"),
]


@pytest.mark.parametrize(("line", "kind", "message"), LINES)
def test_a_known_cause_is_told_with_what_to_do(
    tmp_path: Path, line: str, kind: type[Exception], message: str
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"INFO starting\n{line}\nTraceback …\nRuntimeError: Engine core initialization failed.\n")
    error = explained("engine ended with exit code 1", log)
    assert type(error) is kind
    assert message in error.message
    assert line[:100] in error.hint
    assert len(error.hint.splitlines()) == 2


def test_an_unknown_one_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(f"line {i}" for i in range(100)))
    error = explained("engine ended with exit code 3", log)
    assert error.message == "engine ended with exit code 3"
    assert "line 99" in error.hint
    assert "line 50" not in error.hint


def test_when_vllm_points_to_a_root_cause_that_is_not_known_its_error_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(EngineCore pid=7) ERROR 11-26 09:06:50 [core.py:1231] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 11-26 09:06:50 [core.py:1231]     from flashinfer import (\n"
        "(EngineCore pid=7) ERROR 11-26 09:06:50 [core.py:1231] ModuleNotFoundError: No module named 'flashinfer'\n"
        "(APIServer pid=5) Traceback (most recent call last):\n"
        '(APIServer pid=5)   File "serve.py", line 1, in main\n'
        "(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
    )
    error = explained("engine ended with exit code 1", log)
    assert error.hint == f"{log} says: ModuleNotFoundError: No module named 'flashinfer'"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]",
            "loading the weights, 50 %",
        ),
        ("INFO Starting to load model /models/x...", "loading the weights"),
        ("INFO Dynamo bytecode transform time: 3.2 s", "compiling"),
        ("INFO GPU KV cache size: 300,000 tokens", "sizing the KV cache"),
        ("Capturing CUDA graphs (decode, FULL):  30%|███       | 10/35", "warming up, 30 %"),
        ("INFO Application startup complete.", "opening the port"),
        ("nothing known", ""),
    ],
)
def test_a_line_of_the_log_is_said_in_a_few_words(line: str, words: str) -> None:
    assert stage(["INFO Starting to load model", line] if words else [line]) == words
