"""Finds the traces to analyse: the traces in a file, or the traces of a run's benchmarks and training stages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.files import read_json
from rstar2.runs import load_config


@dataclass(frozen=True)
class TraceSet:
    """Traces that are analysed together: the traces of one benchmark, or the stored rollouts of one training stage."""

    name: str
    """Path of the traces' folder relative to the run, such as eval/stage3. For a single file called traces.jsonl, the
    name of the file's folder. For any other single file, the name of that file."""
    arm: str
    """Distinguishes sets of traces that have the same name and are compared with each other: "plain" for plain GRPO, or
    the run's name."""
    files: tuple[Path, ...]
    model: Path | None
    """Folder of the model that generated all traces, or None if this model is not in the run, or if several models
    generated the traces.
    """
    tokenizer: Path | None
    """Folder of a model in the run that uses the tokenizer of the traces."""

    @property
    def model_sha256(self) -> str | None:
        """Hash of the model that generated the traces (`rstar2.eval.target.model_hash`).

        The hash is None if it is not stored.
        """
        results = read_json(self.files[0].with_name("results.json")) or {}
        sha256: str | None = (results.get("model") or {}).get("sha256")
        return sha256

    @property
    def label(self) -> str:
        return f"{self.arm} {self.name}".strip()


def find_sets(paths: list[Path]) -> list[TraceSet]:
    """Find the sets of traces in files and runs. If several paths are given, the arm of each set (`TraceSet.arm`)
    begins with the part of its path that differs from the other paths.

    Raises:
        UserError: a path is neither a run nor a file of traces, is named twice, or has no traces.
    """
    all_sets = []
    for path, differing in zip(paths, _differing_parts(paths), strict=True):
        sets = [_of_file(path)] if path.is_file() else _of_run(path)
        if not sets:
            raise UserError(
                f"no traces in {path}", "Give a run that measured or trained something, or a file of traces."
            )
        for each in sets:
            arm = f"{differing} {each.arm}".strip()
            all_sets.append(TraceSet(each.name, arm, each.files, each.model, each.tokenizer))
    return all_sets


def file_sizes(sets: list[TraceSet]) -> dict[Path, int]:
    """The size of each file of traces, in bytes."""
    return {file: file.stat().st_size for each in sets for file in each.files}


def recorded(folder: Path, paths: list[Path], sizes: dict[Path, int]) -> dict[str, Any]:
    """A JSON-able record of the traces that an analysis read.

    The record's paths are relative to `folder`, so that the analysis can be moved together with the traces.
    """
    return {
        "paths": [os.path.relpath(path, folder) for path in paths],
        "bytes": {os.path.relpath(path, folder): size for path, size in sizes.items()},
    }


def has_changed(folder: Path, about: dict[str, Any]) -> bool:
    """Whether the traces have changed since an analysis.

    `about` is the analysis's record, made by `recorded` for `folder`.
    """
    paths = [folder / path for path in about["paths"]]
    try:
        return recorded(folder, paths, file_sizes(find_sets(paths))) != about
    except UserError:  # the traces are gone
        return True


def _differing_parts(paths: list[Path]) -> list[str]:
    """Returns each path without the leading and trailing folders that all paths share. For a single path, returns an
    empty text.
    """
    split = [path.resolve().parts for path in paths]
    for path, parts in zip(paths, split, strict=True):
        if split.count(parts) > 1:
            raise UserError(f"{path} is named twice", "Name each run or file once.")
    if len(split) < 2:
        return [""] * len(split)
    most = min(map(len, split)) - 1
    begins = next((i for i in range(most) if len({parts[i] for parts in split}) > 1), most)
    most -= begins
    ends = next((i for i in range(most) if len({parts[-1 - i] for parts in split}) > 1), most)
    return ["/".join(parts[begins : len(parts) - ends]) for parts in split]


def _of_file(path: Path) -> TraceSet:
    name = path.resolve().parent.name if path.name == "traces.jsonl" else path.stem
    return TraceSet(name, "", (path,), None, None)


def _of_run(run: Path) -> list[TraceSet]:
    """Returns the sets of traces of a run: the sets of its benchmarks in the order of their folders, then the sets of
    its training stages.
    """
    with contextlib.suppress(UserError):  # raised for the folder of a single benchmark, which has traces too
        load_config(run)
        return [each for root in (run, run / "plain") for each in _of_arm(run, root)]
    if not (run / "traces.jsonl").is_file():
        raise UserError(
            f"{run} is neither a run nor a file of traces",
            "`rstar2 runs list` lists the runs.",
        )
    return [TraceSet(run.resolve().name, "", (run / "traces.jsonl",), None, None)]


def _of_arm(run: Path, root: Path) -> Iterator[TraceSet]:
    arm = "plain" if root != run else ""
    for path in sorted(root.glob("**/traces.jsonl")):
        inside = path.parent.relative_to(root)
        if path.stat().st_size and (arm or inside.parts[:1] != ("plain",)):
            model = _model(run, root, inside)
            yield TraceSet(inside.as_posix(), arm, (path,), model, model)
    for stage in sorted(root.glob("stage[0-9]")):
        steps = tuple(path for path in sorted((stage / "traces").glob("step-*.jsonl")) if path.stat().st_size)
        if steps:
            yield TraceSet(f"training {stage.name}", arm, steps, None, _folder(stage / "model"))


def _model(run: Path, root: Path, inside: Path) -> Path | None:
    """Returns the folder of the model that a training run measured in `eval/PHASE`. The model of SFT is in the run's
    folder, because training with GRPO-RoC and with plain GRPO both start from this model.
    """
    return _folder(root / inside.name / "model") or _folder(run / inside.name / "model")


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None
