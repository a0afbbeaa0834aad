"""Checks the inputs of `rstar2 train` and `rstar2 sft` before a run folder is made, and returns the inputs as a
plan."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.addresses import is_loopback
from rstar2.data.benchmarks import fingerprint
from rstar2.data.parquet import prepared_file
from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.files import whole_folder
from rstar2.judge.queue.embedded_redis import server_binary
from rstar2.judge.schema import ISOLATION_ORDER
from rstar2.loop.formats.format import FORMAT_FILE, Format
from rstar2.loop.judge_check import require, try_judge
from rstar2.loop.model_folder import write_format
from rstar2.loop.turns.choose import codec_for, differences, load_tokenizer, model_format, named_format
from rstar2.model_shape import weight_files
from rstar2.train.answers import UnreadableAnswer, readable_rows
from rstar2.train.attention import check_attention
from rstar2.train.changeable import compared
from rstar2.train.encoding import CodecOf, OnRows, encoded_data, taught_codec
from rstar2.train.filter.unsolved import check_solved_file, outcomes_before, solved_file
from rstar2.train.recipe import SftRecipe, StageRecipe
from rstar2.train.sampling import JudgeAddress, Rows, problems_of
from rstar2.train.split import Split, split
from rstar2.train.stages import check_enough, last_actor, prompt_lengths
from rstar2.train.trainer.tracking import check_trackers


@dataclass(frozen=True)
class TrainPlan:
    """The stages to run, and their inputs."""

    recipes: dict[int, StageRecipe]
    model: Path
    data: Path
    format: Format
    rows: list[dict[str, Any]]
    solved: Path | None
    """A folder that records how often each training problem was solved: a folder of the filter, or a run of `rstar2
    eval`."""
    judge: JudgeChoice
    too_long: dict[int, int]
    """For each stage, the number of training problems that are left out because their prompt has more than
    `rollout.prompt_tokens` tokens."""
    held_out_too_long: dict[int, int]
    """For each stage, the number of held-out problems that are left out because their prompt has more than
    `rollout.prompt_tokens` tokens."""
    unreadable: dict[Path, list[UnreadableAnswer]] = field(default_factory=dict)
    """For each data file, the problems that are left out because no output can be graded correct against their answer.
    """

    def config(self) -> dict[str, Any]:
        """Returns the config that is stored in the run's folder. When the run is resumed, the part of the
        config that `compared` returns must be the same as in the stored config."""
        recipes = {str(number): recipe.model_dump(mode="json") for number, recipe in self.recipes.items()}
        return {
            "recipes": recipes,
            **_source(self.model, self.data),
            "format": self.format.digest,
            "solved": str(self.solved.absolute()) if self.solved else None,
        }

    @staticmethod
    def compared(config: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of a config that must be the same when a run is resumed, see `rstar2.train.changeable`."""
        recipes = {number: compared(recipe, StageRecipe) for number, recipe in config["recipes"].items()}
        return {**config, "recipes": recipes}


@dataclass(frozen=True)
class SftPlan:
    """The inputs of SFT, which have passed all checks before SFT starts."""

    recipe: SftRecipe
    model: Path
    data: Path
    format: Format
    split: Split
    problems: list[Problem] = field(default_factory=list)
    """Held-out problems on which the model is evaluated during training; empty if the recipe names no held-out
    problems."""
    judge: JudgeChoice = field(default_factory=JudgeChoice)
    """The judge for the evaluations on held-out problems."""

    def config(self) -> dict[str, Any]:
        """Returns the config that is stored in the run's folder. When the run is resumed, the part of the
        config that `compared` returns must be the same as in the stored config."""
        held_out = {"validation_sha256": self.split.held_out.digest} if self.recipe.validation.data else {}
        if self.problems:
            held_out["problems"] = fingerprint(self.problems)
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            **_source(self.model, self.data),
            **held_out,
            "format": self.format.digest,
        }

    @staticmethod
    def compared(config: dict[str, Any]) -> dict[str, Any]:
        """Returns the part of a config that must be the same when a run is resumed, see `rstar2.train.changeable`."""
        return {**config, "recipe": compared(config["recipe"], SftRecipe)}


def _source(model: Path, data: Path) -> dict[str, str]:
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"model": str(model.absolute()), "data": str(data.absolute()), "data_sha256": digest}


def plan_training(
    recipes: dict[int, StageRecipe], model: Path, data: Path, solved: Path | None, judge: JudgeChoice
) -> TrainPlan:
    """Checks everything that can be checked before the first stage, and returns the plan.

    Args:
        solved: see `TrainPlan.solved`.

    Raises:
        UserError: the model, the data or `solved` cannot be used; `solved` has too few samples of a problem; too few
            problems have a prompt within the token limit; or no judge can be started.
    """
    check_model(model)
    for recipe in recipes.values():
        check_attention(recipe.hardware.attention, model)
    fmt = check_start(recipes, model)
    if solved is None:
        check_outcomes(recipes, model)
    data = prepared_file(data)
    rows, held_out, unreadable = check_data(recipes, data, solved)
    for recipe in recipes.values():
        check_trackers(recipe.trackers, recipe.trace_trackers)
    if judge.url is None:
        server_binary()
    codec = codec_for(load_tokenizer(model), fmt)
    lengths = prompt_lengths(rows, codec)
    too_long = {
        number: _too_long(lengths, recipe, recipe.rollout.prompts, str(data))
        for number, recipe in recipes.items()
    }
    if solved is not None:
        for recipe in filter(lambda each: each.drop_solved, recipes.values()):
            limit = recipe.rollout.prompt_tokens
            short_enough = [row for row, length in zip(rows, lengths, strict=True) if length <= limit]
            check_solved_file(solved, short_enough, recipe)
    held_out_too_long = {
        number: _too_long(prompt_lengths(each, codec), recipes[number], 1, str(recipes[number].held_out.data))
        for number, each in held_out.items()
    }
    return TrainPlan(recipes, model, data, fmt, rows, solved, judge, too_long, held_out_too_long, unreadable)


def check_judge_place(recipes: dict[int, StageRecipe], judge: JudgeChoice) -> None:
    """Raises UserError if training has several nodes and the judge cannot be reached from all of them."""
    if all(recipe.machines.nodes == 1 for recipe in recipes.values()):
        return
    hint = "Start one (rstar2 judge up --host … --token …) and give its URL with --judge."
    if judge.url is None:
        raise UserError("training on several nodes needs a judge that all nodes can reach", hint)
    if is_loopback(judge.url):
        raise UserError(
            f"training on several nodes needs a judge that all nodes can reach, but on each node {judge.url} means "
            "the node itself",
            "Give the judge's URL with its host name or its network address.",
        )


def check_programs(recipes: dict[int, StageRecipe], address: JudgeAddress, fmt: Format) -> None:
    """Runs programs on the judge in the same way in which rollouts will run their programs.

    For the recipe of every stage, the judge must have the packages of `judge.packages` and the isolation of
    `judge.isolation`.

    Raises:
        UserError: the judge rejects the programs, or does not have the packages or the isolation.
        JudgeError: the judge does not answer.
    """
    url, token = address
    packages = dict.fromkeys(name for recipe in recipes.values() for name in recipe.judge.packages)
    tiers = [recipe.judge.isolation for recipe in recipes.values() if recipe.judge.isolation]
    report = try_judge(url, token, fmt, tuple(packages))
    require(report, url, max(tiers, key=ISOLATION_ORDER.index, default=None))


def check_data(
    recipes: dict[int, StageRecipe], data: Path, solved: Path | None
) -> tuple[Rows, dict[int, Rows], dict[Path, list[UnreadableAnswer]]]:
    """Reads the training data and the held-out data, and checks the data as far as this is possible without a model.

    Returns:
        The rows to train on; for each stage, the held-out rows; and for each data file, the rows that are left out
        because no output can be graded correct against their answer.

    Raises:
        UserError: the data or `solved` cannot be used, or the data is too small.
    """
    rows, left_out = readable_rows(data, recipes[min(recipes)].rollout.rollouts)
    unreadable = {prepared_file(data): left_out}
    needed = max(recipe.rollout.prompts for recipe in recipes.values())
    if len(rows) < needed:
        raise UserError(
            f"{data} has {len(rows)} problem{'s' * (len(rows) != 1)}"
            + (
                f" (not counting {len(left_out)} that are left out, because no output can be graded correct against "
                "their answers)"
                if left_out
                else ""
            )
            + f", but a step needs {needed}",
            f"Lower this number with `--set rollout.prompts=N` (N is at most {len(rows)}), or add problems."
            if rows
            else "Add problems.",
        )
    if solved is not None:
        filtered = [recipe for recipe in recipes.values() if recipe.drop_solved]
        solved_file(solved, filtered[0] if filtered else None)
    elif any(recipe.drop_solved for recipe in recipes.values()):
        problems_of(rows)
    held_out = {}
    for number, recipe in recipes.items():
        if recipe.held_out.data:
            file = Path(recipe.held_out.data)
            held_out[number], unreadable[prepared_file(file)] = readable_rows(file, recipe.held_out.samples)
    return rows, held_out, unreadable


def _too_long(lengths: list[int], recipe: StageRecipe, needed: int, data: str) -> int:
    """Returns how many prompts a stage leaves out because they are too long. Raises UserError if fewer than `needed`
    prompts remain."""
    limit = recipe.rollout.prompt_tokens
    too_long = sum(length > limit for length in lengths)
    check_enough(len(lengths) - too_long, needed, limit, data)
    return too_long


def check_start(recipes: dict[int, StageRecipe], model: Path) -> Format:
    """Returns the format in which the first stage trains the model.

    Raises UserError if the recipe names another format than the model has, or if the first stage should continue an
    optimizer but cannot.
    """
    first = recipes[min(recipes)]
    fmt = rl_format(first.format, model)
    if first.optim.state == "continued":
        last_actor(model, first)
    return fmt


def check_outcomes(recipes: dict[int, StageRecipe], model: Path) -> None:
    """Raises UserError if a stage has `solved_by` = "outcomes", but will not have usable outcomes.

    The first stage needs the outcomes in the folder of the stage that made its model. For a later stage, the stage
    before must have the same reward, because the reward decides what counts as correct.
    """
    before: StageRecipe | None = None
    for number, recipe in recipes.items():
        if recipe.drop_solved and recipe.solved_by == "outcomes":
            if before is None:
                outcomes_before(model, recipe)
            elif before.reward != recipe.reward:
                raise UserError(
                    f'stage {number} has solved_by = "outcomes" and reward = {recipe.reward}, but the stage before has '
                    f"reward = {before.reward}",
                    'Use the same reward in both stages, or set solved_by = "samples".',
                )
        before = recipe


def plan_sft(
    recipe: SftRecipe,
    model: Path,
    data: Path,
    judge: JudgeChoice | None = None,
    on_rows: OnRows = lambda count: None,
) -> SftPlan:
    """Checks everything that can be checked before SFT, encodes the conversations, and returns the plan.

    If an earlier run has encoded the same conversations, the encoding of that run is used.

    Args:
        judge: the judge for the evaluations during training; if None, a judge is started for the run.
        on_rows: called with the number of conversations encoded so far.

    Raises:
        UserError: the model, the format or the data cannot be used, or there are too few conversations.
        Failure: the disk is full, or a process died.
    """
    check_model(model)
    check_attention(recipe.hardware.attention, model)
    check_trackers(recipe.trackers, sft=True)
    problems = _problems(recipe, judge or JudgeChoice())
    codec = taught_codec(recipe.format, model)
    data = prepared_file(data)
    codec_source = CodecOf(recipe.format, model, codec.digest)
    encoded = encoded_data(data, codec_source, on_rows)
    held_out = None
    if recipe.validation.data:
        file = prepared_file(Path(recipe.validation.data))
        held_out = encoded_data(file, codec_source, on_rows)
        if held_out.digest == encoded.digest:
            raise UserError(
                f"validation.data = {recipe.validation.data} is the training data",
                "Name another file, or leave validation.data out: validation.share then holds out a part of the "
                "training data.",
            )
    parts = split(recipe, encoded, held_out)
    check_batch(recipe, data, parts)
    if recipe.validation.data and not len(parts.validation):
        raise UserError(
            f"validation.data = {recipe.validation.data} has no conversation to measure the loss on: "
            f"{parts.repeated} ask nearly the same question as a conversation of the training data",
            "Name other conversations, or leave validation.data out.",
        )
    return SftPlan(recipe, model, data, codec.format, parts, problems, judge or JudgeChoice())


def _problems(recipe: SftRecipe, judge: JudgeChoice) -> list[Problem]:
    """Returns the held-out problems of SFT. Raises UserError if the problems cannot be used, or if no judge can be
    started."""
    if not recipe.held_out.data:
        return []
    if judge.url is None:
        server_binary()
    rows, _ = readable_rows(Path(recipe.held_out.data), recipe.held_out.samples)
    return problems_of(rows)


def check_batch(recipe: SftRecipe, data: Path, parts: Split) -> None:
    """Raises UserError if the split leaves fewer training conversations than a batch needs."""
    count = len(parts.train)
    if count >= recipe.batch:
        return
    held_out = len(parts.validation) if not recipe.validation.data else 0
    limit = f" of at most {recipe.max_tokens} tokens" if parts.too_long and recipe.too_long == "drop" else ""
    without = f" without the {held_out} that validation.share holds out" if held_out else ""
    check_count(recipe, data, count, f"{limit}{without}", bool(limit))


def check_count(recipe: SftRecipe, data: Path, count: int, which: str = "", too_long: bool = False) -> None:
    """Raises UserError if a file has fewer conversations than a batch needs.

    Args:
        which: words for the message that say which of the file's conversations are counted. `which` is empty if all of
            the file's conversations are counted.
        too_long: whether a higher `max_tokens` would leave out fewer conversations.
    """
    if count < recipe.batch:
        raise UserError(
            f"{data} has {count} conversations{which}, but a batch needs {recipe.batch}",
            "Lower batch" + (", or raise max_tokens." if too_long else "."),
        )


def rl_format(named: str | None, model: Path) -> Format:
    """Returns the format in which RL trains a model.

    Args:
        named: the recipe's `format`. A model without a format file can be trained in any format. If the recipe names no
            format for a model without a format file, the model's own chat template is used.

    Raises:
        UserError: the model has a format file with another format.
    """
    tokenizer = load_tokenizer(model)
    current, source = model_format(model, tokenizer)
    if not named:
        return codec_for(tokenizer, current, source).format
    recipe_format = codec_for(tokenizer, named_format(named, current, source), named).format
    differing = differences(current, recipe_format, source) if source == FORMAT_FILE else []
    if differing:
        raise UserError(
            f"the recipe's format {named} is not the format of {model}; they differ in: {', '.join(differing)}",
            f"Teach the model this format (rstar2 sft --set format={named}), or use the model's own format: "
            "--set format=''",
        )
    return recipe_format


def check_model(model: Path) -> None:
    """Raises UserError if a model's folder has no config.json or no weights."""
    if not (model / "config.json").is_file():
        raise UserError(f"{model} has no config.json", "Give the folder of a Hugging Face model.")
    if not weight_files(model):
        raise UserError(f"{model} has no weights", "Give the folder that also holds the .safetensors files.")


def with_format(model: Path, fmt: Format, folder: Path) -> Path:
    """Returns a folder that contains both the model and the format, so that VERL, vLLM and rstar2 all find the format
    there.

    If the model has the format already, the model's own folder is returned. If the model lacks the format, the function
    creates `folder` with the format and with links to the model's files, and returns `folder`.
    """
    tokenizer = load_tokenizer(model)
    current, source = model_format(model, tokenizer)
    if folder.is_dir() or (source == FORMAT_FILE and current == fmt):
        return folder if folder.is_dir() else model
    with whole_folder(folder) as part:
        write_format(codec_for(tokenizer, fmt), model, part)
        for file in model.iterdir():
            # The tokens in this legacy file would override those in tokenizer_config.json.
            if file.is_file() and file.name != "special_tokens_map.json" and not (part / file.name).exists():
                (part / file.name).symlink_to(file.resolve())
    return folder
