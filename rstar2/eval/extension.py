"""Extends an evaluation: a later start may add samples, problems and benchmarks to the folder of an earlier one.

Finished samples count, and only missing ones are sampled. Whatever else decides the result has to stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rstar2.data.benchmarks import begins_with, fingerprint
from rstar2.data.problem import Problem
from rstar2.files import read_json, write_json
from rstar2.runs import load_config, refuse_changed

Config = dict[str, Any]


def extended_config(
    folder: Path, kind: str, config: Config, problems: Mapping[str, Sequence[Problem]]
) -> tuple[Config, Callable[[Config], Config]]:
    """What a run's config.json is to hold after this start, and what of it the run may not change.

    Args:
        folder: the run's, which need not exist.
        kind: of this start, as config.json has it. A run of another kind is left to `open_run`, which refuses it.
        config: `rstar2.eval.plan.EvalPlan.config` of this start.
        problems: of this start, by benchmark.

    Returns:
        `config` with the benchmarks of earlier starts, and `compared` of `rstar2.runs.open_run`.
    """
    stored_kind, stored = load_config(folder) if (folder / "config.json").exists() else ("", {})
    if stored_kind != kind or not {"problems", "settings"} <= stored.keys():
        return config, lambda each: each
    earlier = {
        name: {**stored["settings"][name], "problems": print_} for name, print_ in stored["problems"].items()
    }
    more = {
        name
        for name in earlier.keys() & problems.keys()
        if begins_with(problems[name], earlier[name]["problems"])
    }
    judged = {"judge_model": stored["judge_model"]} if "judge_model" in stored else {}
    merged = {
        **judged,
        **config,
        "problems": {**stored["problems"], **config["problems"]},
        "settings": {**stored["settings"], **config["settings"]},
    }

    def compared(each: Config) -> Config:
        """A config without what this start adds to the stored one."""
        settings, prints = {}, {}
        for name, before in earlier.items():
            now = {**each["settings"][name], "problems": each["problems"][name]}
            settings[name] = _less_added(before, now, name in more)
            prints[name] = settings[name].pop("problems")
        added = set() if judged else {"judge_model"}
        others = {key: value for key, value in each.items() if key not in added}
        return {**others, "problems": prints, "settings": settings}

    return merged, compared


def keep_settings(folder: Path, protocol: Config, problems: Sequence[Problem]) -> None:
    """Keep what decides a benchmark's result in its folder, or compare it with what an earlier start kept there.

    If this start adds samples or problems, results.json is marked as not complete, so that it is true even if this
    start is killed.

    Raises:
        UserError: the folder was made with other settings, with more samples, or with other problems.
    """
    record, now = folder / "settings.json", {**protocol, "problems": fingerprint(problems)}
    before = read_json(record)
    if before is None or before == now or not {"problems", "samples"} <= before.keys():
        refuse_changed(record, now)
        return
    refuse_changed(record, _less_added(before, now, begins_with(problems, before["problems"])))
    if results := read_json(folder / "results.json"):
        missing = len(problems) * protocol["samples"] - results["summary"]["samples"]
        write_json(folder / "results.json", {**results, "complete": False, "missing": missing})
    write_json(record, now)


def _less_added(before: Config, now: Config, adds_problems: bool) -> Config:
    """Settings and fingerprint of a benchmark, with those of `before` where `now` only adds to them."""
    samples = before["samples"] if now["samples"] >= before["samples"] else now["samples"]
    return {**now, "samples": samples, "problems": before["problems"] if adds_problems else now["problems"]}
