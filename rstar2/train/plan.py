"""What `rstar2 train` and `rstar2 sft` are asked to do and start from, checked before a run folder is made."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.parquet import prepared_file, read_rows, stage_rows, write_parquet
from rstar2.errors import UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.files import read_objects
from rstar2.judge.queue.embedded_redis import server_binary
from rstar2.prompts import CHAT_TEMPLATE, FORMAT_FILE, load_codec, save_format
from rstar2.train.recipe import SftRecipe, StageRecipe
from rstar2.train.sampling import problems_of, traces_of_eval
from rstar2.train.stages import last_actor

_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True)
class TrainPlan:
    """The stages to run and what they start from."""

    recipes: dict[int, StageRecipe]
    model: Path
    data: Path
    rows: list[dict[str, Any]]
    solved: Path | None
    """The `rstar2 eval` run that counts how often the training problems are solved."""
    judge: JudgeChoice

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it."""
        recipes = {str(number): recipe.model_dump(mode="json") for number, recipe in self.recipes.items()}
        return {
            "recipes": recipes,
            **_source(self.model, self.data),
            "solved": str(self.solved.absolute()) if self.solved else None,
        }


@dataclass(frozen=True)
class SftPlan:
    """Conversations to fine-tune a model on."""

    recipe: SftRecipe
    model: Path
    data: Path
    conversations: list[dict[str, Any]]
    too_long: int
    """How many conversations of the data have more tokens than the recipe allows."""

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it."""
        return {"recipe": self.recipe.model_dump(mode="json"), **_source(self.model, self.data)}


def _source(model: Path, data: Path) -> dict[str, str]:
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"model": str(model.absolute()), "data": str(data.absolute()), "data_sha256": digest}


def plan_training(
    recipes: dict[int, StageRecipe], model: Path, data: Path, solved: Path | None, judge: JudgeChoice
) -> TrainPlan:
    """Check everything that can be checked before the first stage.

    A UserError where model, data or `solved` cannot be used, the data is too small, or no judge can be started.
    """
    check_model(model)
    data = prepared_file(data)
    rows = stage_rows(data, load_codec(model).format, recipes[min(recipes)].rollout.rollouts)
    needed = max(recipe.rollout.prompts for recipe in recipes.values())
    if len(rows) < needed:
        raise UserError(
            f"{data} has {len(rows)} problems, a step needs {needed}", "Set rollout.prompts lower."
        )
    first = recipes[min(recipes)]
    if first.optim.state == "continued":
        last_actor(model, first.hardware)
    if solved is not None:
        traces_of_eval(solved)
    elif any(recipe.drop_solved for recipe in recipes.values()):
        problems_of(rows)
    if judge.url is None:
        server_binary()
        if any(recipe.hardware.nodes > 1 for recipe in recipes.values()):
            raise UserError(
                "on several nodes the judge must be reachable from all of them",
                "Start one (rstar2 judge up --host … --token …) and name it with --judge.",
            )
    return TrainPlan(recipes, model, data, rows, solved, judge)


def plan_sft(recipe: SftRecipe, model: Path, data: Path) -> SftPlan:
    """Check what can be checked before SFT; a UserError where model or data cannot be used, or fill no batch."""
    check_model(model)
    data = prepared_file(data)
    rows = read_conversations(data)
    fitting = [
        row for row, count in zip(rows, _tokens(rows, model), strict=True) if count <= recipe.max_tokens
    ]
    kept = fitting if recipe.too_long == "drop" else rows
    if len(kept) < recipe.batch:
        limit = f" of at most {recipe.max_tokens} tokens" if len(kept) < len(rows) else ""
        raise UserError(
            f"{data} has {len(kept)} conversations{limit}, a batch needs {recipe.batch}",
            "Set batch lower" + (", or max_tokens higher." if limit else "."),
        )
    return SftPlan(recipe, model, data, kept, len(rows) - len(fitting))


def _tokens(rows: list[dict[str, Any]], model: Path) -> Iterator[int]:
    """The length of each conversation as SFT sees it."""
    tokenizer = load_codec(model).tokenizer
    for start in range(0, len(rows), 1000):
        texts = [
            tokenizer.apply_chat_template(
                [written_out(message) for message in row["messages"]],
                chat_template=CHAT_TEMPLATE,
                tokenize=False,
            )
            for row in rows[start : start + 1000]
        ]
        yield from map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])


def check_model(model: Path) -> None:
    """Raise a UserError for a folder that has no config.json, weights or ChatML tokenizer."""
    if not (model / "config.json").is_file():
        raise UserError(f"{model} has no config.json", "Give the folder of a Hugging Face model.")
    if not any(model.glob("*.safetensors")) and not any(model.glob("*.bin")):
        raise UserError(f"{model} has no weights", "Give the folder that holds the .safetensors files too.")
    load_codec(model)


def with_our_template(model: Path, folder: Path) -> Path:
    """A copy of the model's folder, by links, with our chat template in its tokenizer.

    VERL's SFT renders conversations with the tokenizer's own template; rollouts use ours. They must agree.
    """
    if folder.is_dir():
        return folder
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    codec = load_codec(model)
    codec.tokenizer.chat_template = CHAT_TEMPLATE
    codec.tokenizer.save_pretrained(part)
    save_format(codec.format, part)
    for file in model.iterdir():
        if file.is_file() and not (part / file.name).exists() and file.name != FORMAT_FILE:
            (part / file.name).symlink_to(file.resolve())
    part.rename(folder)
    return folder


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """Read SFT conversations from parquet or JSON lines; a UserError names the row that is none, and its fault."""
    hint = "A row is {messages: [{role, content}, …]}."
    is_parquet = path.suffix == ".parquet"
    rows = read_rows(path, "messages") if is_parquet else [row for _, row in read_objects(path, hint)]
    if not rows:
        raise UserError(f"{path} is empty", "Give at least one conversation.")
    for number, row in enumerate(rows, 1):
        fault = _fault(row.get("messages"))
        if fault:
            raise UserError(f"{path}, row {number}: {fault}", hint)
    return rows


def write_conversations(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write conversations as parquet for VERL's SFT dataset, only the `messages` column.

    An assistant message without a thought gets an empty one: generation always starts inside `<reason>`,
    and the trainer masks what generation is given. Calls in `tool_calls`, as OpenAI's API writes them, follow the
    message's text, as the model will write them.
    """
    write_parquet(path, [{"messages": [written_out(m) for m in row["messages"]]} for row in rows])


def written_out(message: dict[str, Any]) -> dict[str, str]:
    """A message of a conversation as role and text alone, its calls written as the model will write them."""
    role = message["role"]
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or []]
    content = "\n".join([*filter(None, [message.get("content")]), *calls])
    if role == "assistant" and not content.startswith("<reason>"):
        content = f"<reason></reason>\n{content}"
    return {"role": role, "content": content}


def _call_text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return f"<tool_call>\n{json.dumps({'name': function['name'], 'arguments': given})}\n</tool_call>"


def _are_calls(calls: Any) -> bool:
    """Whether they are calls as OpenAI's API writes them; `arguments` is JSON, as text or not."""
    try:
        return isinstance(calls, list | tuple) and all(_call_text(call["function"]) for call in calls)
    except (KeyError, TypeError, ValueError):
        return False


def _fault(messages: Any) -> str | None:
    """What is wrong with a row's messages, if anything is."""
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            return f"message {place} is no object"
        calls = message.get("tool_calls") or []
        if not _are_calls(calls):
            return f"message {place} has tool_calls that are not [{{function: {{name, arguments}}}}, …]"
        if not isinstance(message.get("content"), str) and (message.get("content") is not None or not calls):
            return f"message {place} has no text content"
        if message.get("role") not in _ROLES:
            return f"message {place} has role {message.get('role')!r}"
    if all(message["role"] != "assistant" for message in messages):
        return "no assistant message to learn from"
    return None
