"""Finds the traces that are analysed: those of a file, or of a run's benchmarks and training stages."""

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
    """Traces that are described together: those of one benchmark, or the rollouts that one training stage kept."""

    name: str
    """The path of their folder, as seen from the run's: eval/stage3; of a single file that of its folder or,
    where it is not called traces.jsonl, its own."""
    arm: str
    """What the set is compared by with others of its name: `plain` under plain GRPO, or the run's name."""
    files: tuple[Path, ...]
    model: Path | None
    """The folder of the model that wrote them, where the run holds it and it is the same for all."""
    tokenizer: Path | None
    """A model folder of the run with their tokenizer."""

    @property
    def model_sha256(self) -> str | None:
        """The hash of the model that wrote them (`rstar2.eval.target.model_hash`), where an evaluation kept it."""
        results = read_json(self.files[0].with_name("results.json")) or {}
        sha256: str | None = (results.get("model") or {}).get("sha256")
        return sha256

    @property
    def label(self) -> str:
        return f"{self.arm} {self.name}".strip()


def find_sets(paths: list[Path]) -> list[TraceSet]:
    """The sets of traces in files and runs; with several paths the arm begins with where the path is unlike the others.

    UserError for a path that is neither, is given twice, or has no traces.
    """
    found = []
    for path, unlike in zip(paths, _unlike(paths), strict=True):
        sets = [_of_file(path)] if path.is_file() else _of_run(path)
        if not sets:
            raise UserError(
                f"no traces in {path}", "Give a run that measured or trained something, or a file of traces."
            )
        for each in sets:
            arm = f"{unlike} {each.arm}".strip()
            found.append(TraceSet(each.name, arm, each.files, each.model, each.tokenizer))
    return found


def file_sizes(sets: list[TraceSet]) -> dict[Path, int]:
    """The bytes of each file of traces."""
    return {file: file.stat().st_size for each in sets for file in each.files}


def recorded(folder: Path, paths: list[Path], sizes: dict[Path, int]) -> dict[str, Any]:
    """What an analysis in a folder says of its traces, JSON-able: paths are seen from the folder, which may move."""
    return {
        "paths": [os.path.relpath(path, folder) for path in paths],
        "bytes": {os.path.relpath(path, folder): size for path, size in sizes.items()},
    }


def has_changed(folder: Path, about: dict[str, Any]) -> bool:
    """Whether there are other traces now than when the analysis in a folder was made, which `recorded` them."""
    paths = [folder / path for path in about["paths"]]
    try:
        return recorded(folder, paths, file_sizes(find_sets(paths))) != about
    except UserError:  # they are gone
        return True


def _unlike(paths: list[Path]) -> list[str]:
    """Of each path what is left without the folders that all begin and end with; empty for a single path."""
    split = [path.resolve().parts for path in paths]
    for path, parts in zip(paths, split, strict=True):
        if split.count(parts) > 1:
            raise UserError(f"{path} is given twice", "Give each run or file once.")
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
    """The benchmarks of a run in the order of their folders, then the stages of training."""
    with contextlib.suppress(UserError):  # the folder of one benchmark holds traces too
        load_config(run)
        return [each for root in (run, run / "plain") for each in _of_arm(run, root)]
    if not (run / "traces.jsonl").is_file():
        raise UserError(
            f"there is neither a run nor a file of traces at {run}",
            "`rstar2 runs list` shows the runs; a file of traces works too.",
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
    """The model that a training run measured in `eval/PHASE`; what SFT made is in the run's folder for both arms."""
    return _folder(root / inside.name / "model") or _folder(run / inside.name / "model")


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None
