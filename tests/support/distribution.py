"""Distributes test files over pytest's processes: which files share a process, and which start first."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]
SHARED = {
    # These tests share four sandboxes, one per tier and kind of user.
    "judge/sandbox/": "sandboxes",
    # These tests share a judge with one worker that requires a token, and the judge that most folders use.
    # judge/service/ starts the former a second time, because it would otherwise be the longest unit.
    **dict.fromkeys(("judge/server/", "judge/client/", "judge/test_scale.py"), "judges"),
    # They share the import of transformers, which takes four seconds, and some share the judge.
    **dict.fromkeys(
        (
            "chat/",
            "cli/test_data.py",
            "cli/test_eval_benchmarks.py",
            "cli/test_format.py",
            "docs/test_example_lines.py",
            "engines/test_chat_api.py",
            "engines/test_gguf.py",
            "engines/test_models.py",
            "engines/test_public_endpoints.py",
            "engines/test_vllm.py",
            "eval/benchmarks/test_gpqa_diamond.py",
            "eval/methods/test_chat.py",
            "eval/test_run.py",
            "eval/test_target.py",
            "formats/",
            "test_agent.py",
            "test_prompts.py",
        ),
        "transformers",
    ),
    # They share the judge that most folders use.
    **dict.fromkeys(
        (
            "cli/test_chat.py",
            "cli/test_chat_terminal.py",
            "cli/test_data_agree.py",
            "cli/test_eval.py",
            "cli/test_eval_hosted.py",
            "data/test_builtin.py",
            "docs/test_examples.py",
            "eval/test_eval_model.py",
            "serve/test_agent.py",
            "serve/test_whole.py",
        ),
        "judge users",
    ),
    # Chromium.
    "report/": "browser",
    # Each file imports the libraries only in child processes.
    **{
        name: name
        for name in (
            "train/test_prepared_data.py",
            "train/verl/test_verl_update.py",
            "train/test_gpu_walk.py",
        )
    },
    # They share the import of VERL, torch and transformers (ten seconds); long tests share a Ray cluster of two nodes.
    **dict.fromkeys(
        (
            "train/",
            "analysis/",
            "engines/test_hf.py",
            "test_same_ids.py",
        ),
        "libraries",
    ),
}
"""Dict from a path prefix to the unit of the files with that prefix. A file that is not listed is its own unit."""
LONGEST_FIRST = (
    "demo/test_whole_demo.py",
    # This unit waits most of the time, so it takes no CPU time from other processes.
    "serve/test_replicas.py",
    "demo/test_short_demo.py",
    "libraries",
    "sandboxes",
    "judge users",
    "judges",
    "transformers",
    "eval/harnesses/test_real_harnesses.py",
    "train/test_prepared_data.py",
    "train/verl/test_verl_update.py",
    "judge/service/test_service.py",
    "judge/test_faults.py",
    "tools/test_toolbox.py",
    "browser",
    "train/test_gpu_walk.py",
    "cli/test_serve.py",
    "cli/test_judge.py",
    "cli/test_doctor.py",
    "cli/test_extras.py",
    "cli/test_help.py",
    "eval/grader/test_properties.py",
    "eval/grader/test_symbolic.py",
)
"""Units of more than about 10 seconds. They start first, since a long unit at the end leaves other processes idle."""


def unit(path: str) -> str:
    """Return the unit of a file, whose path is relative to the tests' folder. A unit runs in one process."""
    return next((name for beginning, name in SHARED.items() if path.startswith(beginning)), path)


def place(path: Path) -> int:
    """Return the sort key of a file: long units start first."""
    name = unit(path.relative_to(TESTS).as_posix())
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


class InUnits(LoadScopeScheduling):
    """A scheduler of pytest-xdist that gives each free process the next unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/"))
