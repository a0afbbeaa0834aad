"""Extends an evaluation: a later launch may add samples, problems and benchmarks to the folder of an earlier launch.

Finished samples are kept, and only missing samples are made. All other settings that decide the result must stay the
same.
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
    """Merge the config of this launch with the config of the run's earlier launches.

    Args:
        folder: the run's folder, which need not exist.
        kind: the kind of run that is started, as in config.json. If the stored run has another kind, `open_run` refuses
            this launch.
        config: the value of `rstar2.eval.plan.EvalPlan.config` for this launch.
        problems: dict from benchmark to the problems of this launch.

    Returns:
        The new config.json, and a function for the argument `compared` of `rstar2.runs.open_run`. The new config.json
        is `config` with the benchmarks of earlier launches. The function returns the part of a config that must not
        change.
    """
    stored_kind, stored = load_config(folder) if (folder / "config.json").exists() else ("", {})
    if stored_kind != kind or not {"problems", "settings"} <= stored.keys():
        return config, lambda each: each
    earlier = {
        name: {**stored["settings"][name], "problems": print_} for name, print_ in stored["problems"].items()
    }
    extended = {
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
        """Returns a config without the entries that this launch adds to the stored config."""
        settings, prints = {}, {}
        for name, before in earlier.items():
            now = {**each["settings"][name], "problems": each["problems"][name]}
            settings[name] = _without_additions(before, now, name in extended)
            prints[name] = settings[name].pop("problems")
        added = set() if judged else {"judge_model"}
        others = {key: value for key, value in each.items() if key not in added}
        return {**others, "problems": prints, "settings": settings}

    return merged, compared


def keep_settings(folder: Path, protocol: Config, problems: Sequence[Problem]) -> None:
    """Write a benchmark's settings.json, or compare the settings with the settings that an earlier launch wrote.

    If this launch adds samples or problems, results.json is first marked as incomplete, so that results.json is correct
    even if this launch is killed.

    Args:
        folder: the benchmark's folder.
        protocol: the settings that decide the result.
        problems: the problems of this launch.

    Raises:
        UserError: the folder was made with other settings, with more samples, or with other problems.
    """
    record, now = folder / "settings.json", {**protocol, "problems": fingerprint(problems)}
    before = read_json(record)
    if before is None or before == now or not {"problems", "samples"} <= before.keys():
        refuse_changed(record, now)
        return
    refuse_changed(record, _without_additions(before, now, begins_with(problems, before["problems"])))
    if results := read_json(folder / "results.json"):
        missing = len(problems) * protocol["samples"] - results["summary"]["samples"]
        write_json(folder / "results.json", {**results, "complete": False, "missing": missing})
    write_json(record, now)


def _without_additions(before: Config, now: Config, adds_problems: bool) -> Config:
    """Returns a copy of the config `now` without the samples and problems that it adds to the config `before`. If `now`
    has more samples than `before`, the copy has the number of samples in `before`. If `adds_problems`, the copy has the
    fingerprint of the problems in `before`."""
    samples = before["samples"] if now["samples"] >= before["samples"] else now["samples"]
    return {**now, "samples": samples, "problems": before["problems"] if adds_problems else now["problems"]}
