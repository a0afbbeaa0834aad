"""Writes docs/reference/recipe.md, the reference of recipe keys, from the pydantic models of recipes.

Run `python docs/generators/recipe_reference.py` after you change a key, its description or a shipped recipe.
`make docs` runs it too, and tests/docs/test_docs.py fails if the committed page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rstar2.train.algorithms import CORRECTIONS, OBJECTIVES, AlgorithmSettings
from rstar2.train.curriculum import CURRICULA, CurriculumSettings
from rstar2.train.named_functions import NamedFunctions
from rstar2.train.recipe import STAGES, SftRecipe, StageRecipe
from rstar2.train.recipe_files import read_recipe
from rstar2.train.select import SELECTIONS, SelectSettings

PAGE = Path(__file__).resolve().parents[1] / "reference" / "recipe.md"
HEAD = """\
# Recipe keys

This page is written by `docs/generators/recipe_reference.py` from the pydantic models of recipes; do not edit it.
A recipe is a TOML file, such as those in `recipes/`. `--set KEY=VALUE` changes a key for one run, and
`--set KEY=null` unsets an optional key that the recipe sets.
The last column has the paper's values: those of stages 1, 2 and 3 if they differ, – if the paper states none.
"""
NAMED = {SelectSettings: SELECTIONS, CurriculumSettings: CURRICULA}
UNITS = (
    (r"_s$", "seconds"),
    (r"tokens$", "tokens"),
    (r"characters$", "characters"),
    (r"^steps$|steps$|every$", "steps"),
    (r"^(epochs)$", "epochs"),
    (r"share$", "share, 0 to 1"),
    (r"^rollouts$|in_flight$|_num$|per_step$", "rollouts"),
    (r"prompts$", "problems"),
    (r"minutes$", "minutes"),
    (r"^nodes$", "machines"),
    (r"gpus_per_node$|parallel$", "GPUs"),
)
STATED = {
    "optim.clip_low": "0.2",
    "optim.clip_high": "0.28",
    "algorithm.objective": "grpo",
    "curriculum.name": "uniform",
    "select.name": "roc",
    "rollout.prompt_tokens": "–",
    "optim.state": "– / – / fresh",
    "solved_by": "– / – / samples",
}
"""Entries of the column `paper` that are not read from the recipes, keyed by recipe key. The entry `–` means that the
paper states no value."""


def reference() -> str:
    """Return the whole page as Markdown."""
    stages = [read_recipe(f"stage{number}", "stage")[1] for number in STAGES]
    # The paper names its machines, but not how the model is distributed over them.
    machine = read_recipe("64xmi300x", "profile")[1]["stage"]["hardware"]
    named = {key: machine[key] for key in ("nodes", "gpus_per_node", "gpu")}
    stages = [{**stage, "hardware": named} for stage in stages]
    parts = [
        HEAD,
        "## Every key of a stage's recipe\n",
        *_tables(StageRecipe, "", stages),
        "## Every key of SFT's recipe\n",
        *_tables(SftRecipe, "", [read_recipe("sft", "sft")[1]], leave_out={"hardware"}, owner=" of SFT"),
        "SFT has the `hardware` table of a stage too. Of its keys, `device`, `nodes`, `gpus_per_node`, `gpu`,\n"
        "`sequence_parallel`, `update_tokens`, `gradient_checkpointing` and those that end in `_s` apply to SFT.\n",
    ]
    return "\n".join(parts)


def _tables(
    model: type[BaseModel],
    prefix: str,
    paper: list[dict[str, Any]],
    leave_out: set[str] | None = None,
    owner: str = "",
) -> Iterator[str]:
    """Yield a table of a model's own keys, then a table for each nested model. `owner` is appended to each heading."""
    described = _described(model)
    rows, inner = [], []
    for name, field in model.model_fields.items():
        if name in (leave_out or ()):
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append((name, field.annotation))
            continue
        key = f"{prefix}{name}"
        cells = [
            f"`{key}`",
            described.get(name, ""),
            _unit(name, field),
            _value(_default(field)),
            _stated(key, field, paper),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if prefix:
        yield f"### [{prefix.rstrip('.')}]{owner}\n\n{_oneline(inspect.getdoc(model) or '')}\n"
    if functions := NAMED.get(model):
        rows += _rows_of_named(functions)
    yield "\n".join(["| key | meaning | unit | default | paper |", "|---|---|---|---|---|", *rows]) + "\n"
    if model is AlgorithmSettings:
        yield from _algorithm_tables()
    for name, table in inner:
        yield from _tables(table, f"{prefix}{name}.", [each.get(name, {}) for each in paper], owner=owner)


def _rows_of_named(functions: NamedFunctions) -> Iterator[str]:
    """Yield a row for each setting of each shipped selection or curriculum. Meanings are read from the docstrings."""
    for function in functions.shipped():
        text = inspect.getdoc(functions.load(function)) or ""
        for name, field in functions.settings_of(function).model_fields.items():
            described = re.search(rf"^    {name}: (.*(?:\n      .*)*)", text, re.MULTILINE)
            assert described, f"{function} does not describe {name}"
            cells = [
                f"`{functions.key}.{name}`",
                f"{function}: {_oneline(described[1])}",
                _unit(name, field),
                _value(_default(field)),
                "–",
            ]
            yield f"| {' | '.join(cells)} |"


def _algorithm_tables() -> Iterator[str]:
    """Yield the tables of objectives and of corrections: when to use each, and where it was published."""
    for key, named in (("objective", OBJECTIVES), ("correction", CORRECTIONS)):
        rows = [f"| `{name}` | {each.use} | {each.source} |" for name, each in named.items()]
        yield "\n".join([f"| `algorithm.{key}` | when to use it | source |", "|---|---|---|", *rows]) + "\n"


def _described(model: type[BaseModel]) -> dict[str, str]:
    """Return a dict from each field of a pydantic model to the docstring below it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    descriptions = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            descriptions[field.target.id] = _oneline(str(text.value.value))
    return descriptions


def _unit(name: str, field: FieldInfo) -> str:
    """Return the unit of a key's value, or the allowed values."""
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(get_args(field.annotation))}"
    if field.annotation is bool:
        return "true or false"
    return next((unit for pattern, unit in UNITS if re.search(pattern, name)), "")


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return {}
    return field.default


def _stated(key: str, field: FieldInfo, paper: list[dict[str, Any]]) -> str:
    """Return the paper's value: one for all stages, or one per stage.

    If the recipe of a stage does not set the key, its value is the default.
    """
    name = key.rpartition(".")[2]
    if key in STATED or not any(name in each for each in paper):
        return STATED.get(key, "–")
    values = [_value(each.get(name, _default(field))) for each in paper]
    return " / ".join(values if len(set(values)) > 1 else values[:1])


def _value(value: Any) -> str:
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(value)
    return "–" if value is None or value == {} else str(value)


def _oneline(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
