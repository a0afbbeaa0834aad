"""What `rstar2 train` and `rstar2 sft` are asked to do and start from, checked before a run folder is made."""

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
from rstar2.train.filter.unsolved import check_counted, counted, outcomes_before
from rstar2.train.recipe import SftRecipe, StageRecipe
from rstar2.train.sampling import JudgeAddress, Rows, problems_of
from rstar2.train.split import Split, split
from rstar2.train.stages import check_enough, last_actor, prompt_lengths
from rstar2.train.trainer.tracking import check_trackers


@dataclass(frozen=True)
class TrainPlan:
    """The stages to run and what they start from."""

    recipes: dict[int, StageRecipe]
    model: Path
    data: Path
    format: Format
    rows: list[dict[str, Any]]
    solved: Path | None
    """The filter's folder or `rstar2 eval` run that counts how often the training problems are solved."""
    judge: JudgeChoice
    too_long: dict[int, int]
    """By stage, how many problems are left out because their prompt has more than `rollout.prompt_tokens` tokens."""
    held_out_too_long: dict[int, int]
    """Likewise of the problems that the stage is measured on."""
    unreadable: dict[Path, list[UnreadableAnswer]] = field(default_factory=dict)
    """By file, the problems that are left out because no output can be graded correct against their answer."""

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it; see `compared`."""
        recipes = {str(number): recipe.model_dump(mode="json") for number, recipe in self.recipes.items()}
        return {
            "recipes": recipes,
            **_source(self.model, self.data),
            "format": self.format.digest,
            "solved": str(self.solved.absolute()) if self.solved else None,
        }

    @staticmethod
    def compared(config: dict[str, Any]) -> dict[str, Any]:
        """What of a run's config must be the same at every start, see `rstar2.train.changeable`."""
        recipes = {number: compared(recipe, StageRecipe) for number, recipe in config["recipes"].items()}
        return {**config, "recipes": recipes}


@dataclass(frozen=True)
class SftPlan:
    """Conversations to fine-tune a model on."""

    recipe: SftRecipe
    model: Path
    data: Path
    format: Format
    split: Split
    problems: list[Problem] = field(default_factory=list)
    """On which the model is sampled while it is trained; none if the recipe names none."""
    judge: JudgeChoice = field(default_factory=JudgeChoice)
    """Which judge runs the programs of these samples."""

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it; see `compared`."""
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
        """The part of `config` in which a resumed run may not differ."""
        return {**config, "recipe": compared(config["recipe"], SftRecipe)}


def _source(model: Path, data: Path) -> dict[str, str]:
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"model": str(model.absolute()), "data": str(data.absolute()), "data_sha256": digest}


def plan_training(
    recipes: dict[int, StageRecipe], model: Path, data: Path, solved: Path | None, judge: JudgeChoice
) -> TrainPlan:
    """Check everything that can be checked before the first stage.

    A UserError where model, data or `solved` cannot be used, `solved` does not decide on each problem that a stage may
    leave out, the data is too small, also without prompts that are too long, or no judge can be started.
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
            left = [row for row, length in zip(rows, lengths, strict=True) if length <= limit]
            check_counted(solved, left, recipe)
    held_out_too_long = {
        number: _too_long(prompt_lengths(held, codec), recipes[number], 1, str(recipes[number].held_out.data))
        for number, held in held_out.items()
    }
    return TrainPlan(recipes, model, data, fmt, rows, solved, judge, too_long, held_out_too_long, unreadable)


def check_judge_place(recipes: dict[int, StageRecipe], judge: JudgeChoice) -> None:
    """Raise a UserError if training has several nodes, and those without the judge cannot reach it."""
    if all(recipe.machines.nodes == 1 for recipe in recipes.values()):
        return
    hint = "Start one (rstar2 judge up --host … --token …) and give its URL with --judge."
    if judge.url is None:
        raise UserError("training on several nodes needs a judge that all of them can reach", hint)
    if is_loopback(judge.url):
        raise UserError(
            f"training on several nodes needs a judge that all of them can reach, but {judge.url} means each node "
            "itself",
            "Give the judge's URL with its host name or address in the network.",
        )


def check_programs(recipes: dict[int, StageRecipe], address: JudgeAddress, fmt: Format) -> None:
    """Run programs on the judge as rollouts will; a UserError if it refuses them or lacks what a recipe needs.

    A JudgeError if the judge does not answer.

    Needed are the packages of `judge.packages` and the isolation of `judge.isolation`, of all stages together.
    """
    url, token = address
    packages = dict.fromkeys(name for recipe in recipes.values() for name in recipe.judge.packages)
    tiers = [recipe.judge.isolation for recipe in recipes.values() if recipe.judge.isolation]
    report = try_judge(url, token, fmt, tuple(packages))
    require(report, url, max(tiers, key=ISOLATION_ORDER.index, default=None))


def check_data(
    recipes: dict[int, StageRecipe], data: Path, solved: Path | None
) -> tuple[Rows, dict[int, Rows], dict[Path, list[UnreadableAnswer]]]:
    """The rows to train on, and by stage those it is measured on, as far as they can be checked without a model.

    Rows that no output can be graded correct against are left out, and returned by file. Raises UserError if the data
    or `solved` cannot be used, or if the data is too small.
    """
    rows, left_out = readable_rows(data, recipes[min(recipes)].rollout.rollouts)
    unreadable = {prepared_file(data): left_out}
    needed = max(recipe.rollout.prompts for recipe in recipes.values())
    if len(rows) < needed:
        raise UserError(
            f"{data} has {len(rows)} problems"
            + (
                f" without the {len(left_out)} that no output can be graded correct against"
                if left_out
                else ""
            )
            + f", but a step needs {needed}",
            "Lower rollout.prompts, or add problems.",
        )
    if solved is not None:
        filtered = [recipe for recipe in recipes.values() if recipe.drop_solved]
        counted(solved, filtered[0] if filtered else None)
    elif any(recipe.drop_solved for recipe in recipes.values()):
        problems_of(rows)
    held_out = {}
    for number, recipe in recipes.items():
        if recipe.held_out.data:
            file = Path(recipe.held_out.data)
            held_out[number], unreadable[prepared_file(file)] = readable_rows(file, recipe.held_out.samples)
    return rows, held_out, unreadable


def _too_long(lengths: list[int], recipe: StageRecipe, needed: int, data: str) -> int:
    """How many of the prompts of these lengths a stage leaves out; a UserError where fewer than `needed` are left."""
    limit = recipe.rollout.prompt_tokens
    too_long = sum(length > limit for length in lengths)
    check_enough(len(lengths) - too_long, needed, limit, data)
    return too_long


def check_start(recipes: dict[int, StageRecipe], model: Path) -> Format:
    """The format in which the first stage trains a model.

    A UserError where it is not the model's, or that stage cannot continue the optimizer of the one that made the model.
    """
    first = recipes[min(recipes)]
    fmt = rl_format(first.format, model)
    if first.optim.state == "continued":
        last_actor(model, first)
    return fmt


def check_outcomes(recipes: dict[int, StageRecipe], model: Path) -> None:
    """Raise a UserError if a stage is to leave out problems by outcomes that will not be there.

    Those of the first stage are in the folder of the stage that made its model. Those of a later stage are decided by
    the reward of the stage before.
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
                    'Use one reward, or set solved_by = "samples".',
                )
        before = recipe


def plan_sft(
    recipe: SftRecipe,
    model: Path,
    data: Path,
    judge: JudgeChoice | None = None,
    on_rows: OnRows = lambda count: None,
) -> SftPlan:
    """Check what can be checked before SFT, and encode the conversations unless an earlier run has done so.

    Args:
        judge: runs the programs of the samples of held-out problems; None for one that is started for the run.
        on_rows: called with the number of conversations that were encoded.

    Raises:
        UserError: model, format or data cannot be used, or the data has too few conversations.
        Failure: the disk is full, or a process died.
    """
    check_model(model)
    check_attention(recipe.hardware.attention, model)
    check_trackers(recipe.trackers, sft=True)
    problems = _problems(recipe, judge or JudgeChoice())
    codec = taught_codec(recipe.format, model)
    data = prepared_file(data)
    how = CodecOf(recipe.format, model, codec.digest)
    encoded = encoded_data(data, how, on_rows)
    held_out = None
    if recipe.validation.data:
        file = prepared_file(Path(recipe.validation.data))
        held_out = encoded_data(file, how, on_rows)
        if held_out.digest == encoded.digest:
            raise UserError(
                f"validation.data = {recipe.validation.data} is the training data",
                "Name another file, or leave it out: validation.share then holds out a part of the training data.",
            )
    found = split(recipe, encoded, held_out)
    check_batch(recipe, data, found)
    if recipe.validation.data and not len(found.validation):
        raise UserError(
            f"validation.data = {recipe.validation.data} has no conversation that can be measured: "
            f"{found.repeated} ask nearly the same as one of the training data",
            "Name other conversations, or leave it out.",
        )
    return SftPlan(recipe, model, data, codec.format, found, problems, judge or JudgeChoice())


def _problems(recipe: SftRecipe, judge: JudgeChoice) -> list[Problem]:
    """The problems that SFT samples; a UserError if they cannot be used, or no judge can be started."""
    if not recipe.held_out.data:
        return []
    if judge.url is None:
        server_binary()
    rows, _ = readable_rows(Path(recipe.held_out.data), recipe.held_out.samples)
    return problems_of(rows)


def check_batch(recipe: SftRecipe, data: Path, found: Split) -> None:
    """Raise a UserError if fewer conversations are left than a batch has."""
    left = len(found.train)
    if left >= recipe.batch:
        return
    held_out = len(found.validation) if not recipe.validation.data else 0
    limit = f" of at most {recipe.max_tokens} tokens" if found.too_long and recipe.too_long == "drop" else ""
    beside = f" beside the {held_out} that validation.share holds out" if held_out else ""
    check_count(recipe, data, left, f"{limit}{beside}", bool(limit))


def check_count(recipe: SftRecipe, data: Path, count: int, which: str = "", too_long: bool = False) -> None:
    """Raise a UserError if a file has fewer conversations than a batch.

    Args:
        which: which conversations are counted, if not all.
        too_long: whether a greater limit of tokens would leave more.
    """
    if count < recipe.batch:
        raise UserError(
            f"{data} has {count} conversations{which}, but a batch needs {recipe.batch}",
            "Lower batch" + (", or raise max_tokens." if too_long else "."),
        )


def rl_format(named: str | None, model: Path) -> Format:
    """The format of the model that RL starts from.

    A format may be named for a model without a format file, whose own chat template is taken otherwise. A UserError
    where the model has another one.
    """
    tokenizer = load_tokenizer(model)
    own, source = model_format(model, tokenizer)
    if not named:
        return codec_for(tokenizer, own, source).format
    wanted = codec_for(tokenizer, named_format(named, own, source), named).format
    differing = differences(own, wanted, source) if source == FORMAT_FILE else []
    if differing:
        raise UserError(
            f"the recipe's format {named} is not the format of {model}; these differ: {', '.join(differing)}",
            f"Teach the model this format (rstar2 sft --set format={named}), or use its own: --set format=''",
        )
    return wanted


def check_model(model: Path) -> None:
    """Raises UserError if a folder has no config.json or no weights."""
    if not (model / "config.json").is_file():
        raise UserError(f"{model} has no config.json", "Give the folder of a Hugging Face model.")
    if not weight_files(model):
        raise UserError(f"{model} has no weights", "Give the folder that also holds the .safetensors files.")


def with_format(model: Path, fmt: Format, folder: Path) -> Path:
    """A model's folder with the format: itself where it has it, else `folder`, a copy by links.

    VERL, vLLM and our own loaders then all find the format with the model.
    """
    tokenizer = load_tokenizer(model)
    own, source = model_format(model, tokenizer)
    if folder.is_dir() or (source == FORMAT_FILE and own == fmt):
        return folder if folder.is_dir() else model
    with whole_folder(folder) as part:
        write_format(codec_for(tokenizer, fmt), model, part)
        for file in model.iterdir():
            # The tokens in the legacy file would replace those of tokenizer_config.json.
            if file.is_file() and file.name != "special_tokens_map.json" and not (part / file.name).exists():
                (part / file.name).symlink_to(file.resolve())
    return folder
