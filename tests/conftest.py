"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.distribution import InUnits, place
from support.eval import grader_defects
from support.train.ray_nodes import ray_nodes

from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, running_judge, start_service, stop_service
from rstar2.loop.formats.format import default_format
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.template import END_OF_TURN
from rstar2.plugins import FOLDERS

REPOSITORY = Path(__file__).resolve().parent.parent

# A shell starts background processes with SIGINT ignored, and nohup starts its command with SIGHUP ignored. The
# commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# For speed only: imports create hundreds of thousands of objects, and nearly all of them stay.
gc.set_threshold(20_000, 20, 100)

# The tests start hundreds of interpreters. Without cached bytecode, each of them would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# pytest-xdist sets COLUMNS for its workers. A rich console that is created then keeps that width, and so does one that
# is created while a test runs a command with another width. Therefore the console is created now, without COLUMNS.
os.environ.pop("COLUMNS", None)
importlib.import_module("rstar2.cli.common")

grader_defects.note_defects()

# The suite tries the same examples each time, without a time limit. `--hypothesis-profile=search` tries new ones.
ANY_SPEED: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("suite", **ANY_SPEED, derandomize=True)
hypothesis.settings.register_profile("search", **ANY_SPEED)
hypothesis.settings.load_profile("suite")


REAL_VLLM = ("engines/test_real_vllm.py", "train/verl/test_vllm_training.py")
TRACKERS = ("train/trainer/test_tracker_backends.py",)
"""Tests that need the packages of `make test-trackers`."""
collect_ignore = [
    *(() if "RSTAR2_VLLM_PYTHON" in os.environ else REAL_VLLM),
    *(() if find_spec("mlflow") else TRACKERS),
]


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.path))
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            # On a busy machine, Ray's nodes may have to be started several times.
            item.add_marker(pytest.mark.timeout(3600))
        if {"ray_cluster", "verls_queue"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude loaded modules and collected tests from garbage collection. This is only for speed."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InUnits | None:
    return InUnits(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in collect_ignore:
        command = "make test-vllm" if name in REAL_VLLM else "make test-trackers"
        terminalreporter.line(f"not collected: tests/{name}, which {command} runs")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A small byte-level BPE tokenizer that can encode every text. It is trained in each session."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(
        [
            default_format().template,
            default_format().user,
            (REPOSITORY / "rstar2" / "loop" / "turns" / "template.py").read_text(),
        ],
        trainer,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END_OF_TURN,
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )


@pytest.fixture(scope="session")
def codec(tokenizer: Any) -> ChatCodec:
    return codec_for(tokenizer)


@pytest.fixture(autouse=True)
def no_grader_defects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test if the grader's code raised an unexpected exception, unless the test is marked to allow it."""
    grader_defects.noted.clear()
    yield
    if not request.node.get_closest_marker("allows_grader_defects"):
        grader_defects.refuse_defects()


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Ray cluster of two nodes on this machine. Each node reports two GPUs that do not exist."""
    with ray_nodes(tmp_path_factory.mktemp("ray"), [2, 2]) as environment:
        yield environment


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A real judge: Valkey, an HTTP process and two workers. It does not preload libraries, because few tests need
    them."""
    with running_judge(tmp_path_factory.mktemp("judge"), preload=False) as handle:
        yield handle


@pytest.fixture(scope="session")
def token_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge with one worker that requires a token."""
    folder = str(tmp_path_factory.mktemp("token-judge"))
    settings = ServiceSettings(folder=folder, workers=1, token="s3cret", preload=False)
    process, handle = start_service(settings)
    yield handle
    stop_service(process)


@pytest.fixture
def users_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset the folders of users' modules after the test, and unload the modules that came from them."""
    monkeypatch.setenv(FOLDERS, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    searched = [Path(folder) for folder in os.environ[FOLDERS].split(os.pathsep) if folder]
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and Path(file).parent in searched:
            del sys.modules[name]
