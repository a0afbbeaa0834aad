"""Where pytest runs in several processes: which files share one, for what they start, and which begin first."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]
SHARED = {
    # Four sandboxes, of each tier and kind of user.
    "judge/sandbox/": "sandboxes",
    # A judge of one worker that asks for a token, beside the judge that most folders use. judge/service/ starts the
    # former a second time: with it, this would be the longest unit.
    **dict.fromkeys(("judge/server/", "judge/client/", "judge/test_scale.py"), "judges"),
    # transformers, which takes four seconds to import, and for some the judge.
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
    # The judge that most folders use.
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
    # Each leaves the libraries to processes of its own.
    **{
        name: name
        for name in (
            "train/test_prepared_data.py",
            "train/verl/test_verl_update.py",
            "train/test_gpu_walk.py",
        )
    },
    # VERL, torch and transformers, which take ten seconds to import, and in the long layer a Ray cluster of two nodes.
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
"""The unit of files, by the beginning of their paths, where it is not one of them."""
LONGEST_FIRST = (
    "demo/test_whole_demo.py",
    # Waits for nearly all of its time, and so costs the others nothing while they compute.
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
"""The units of more than about 10 seconds: a long one at the end would leave the other processes idle."""


def unit(path: str) -> str:
    """What runs in one process with a file, whose path is relative to the tests' folder."""
    return next((name for beginning, name in SHARED.items() if path.startswith(beginning)), path)


def place(path: Path) -> int:
    """When a file begins, by the length of its unit."""
    name = unit(path.relative_to(TESTS).as_posix())
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


class InUnits(LoadScopeScheduling):
    """Gives each process the next unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/"))
