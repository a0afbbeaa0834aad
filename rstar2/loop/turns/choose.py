"""Which format a model has, and the codec of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.files import read_json
from rstar2.loop.formats.families import FAMILIES
from rstar2.loop.formats.format import FORMAT_FILE, OURS, OWN, Format, ours, read_format
from rstar2.loop.turns.check import check_round_trip
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.families import FamilyCodec, family_of
from rstar2.loop.turns.template import TemplateCodec
from rstar2.model_hub import check_on_hub
from rstar2.runs import changed_keys

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.*", "tekken.json")
"""A model's folder has at least one of them."""


def codec_for(tokenizer: Any, fmt: Format | None = None, source: str = OURS) -> ChatCodec:
    """The codec of a Hugging Face tokenizer and a format, by default ours; `source` says where the format comes from.

    UserError as of `TemplateCodec`, `FamilyCodec` and `check_round_trip`.
    """
    fmt = fmt or ours()
    codec = (
        TemplateCodec(tokenizer, fmt, source) if fmt.family is None else FamilyCodec(tokenizer, fmt, source)
    )
    check_round_trip(codec)
    return codec


@dataclass(frozen=True)
class FormatChoice:
    """The format that a user names for a model. Raises UserError if one is forced but none is named."""

    named: str | None = None
    """Name or file of a format, see `read_format`; None for the model's own."""
    forced: bool = False
    """Use it also where the model has another one."""

    def __post_init__(self) -> None:
        if self.forced and self.named is None:
            raise UserError("--force-format needs --format", "Name a format.")


MODELS_OWN = FormatChoice()


def load_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """The codec of a model folder or hub id, in the model's format.

    That is its format file's, else the family's whose turns its own chat template writes, else its own chat template's
    with our tags, else ours. One that is chosen must agree with it, or be forced.

    Raises:
        UserError: no tokenizer can be loaded from there, its parts disagree, or as of `read_format` and `codec_for`.
    """
    if isinstance(model, Path) and not model.is_dir():
        hint = "Give the folder that holds config.json and the weights."
        raise UserError(f"no model folder at {model}", hint)
    return codec_of(model, load_tokenizer(model), choice)


def load_chat_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """The codec of a model that is shown the tools of its requests, if any, so that a template that knows none will do.

    UserError as of `load_codec` where a format is named, or the model can be shown nothing at all.
    """
    try:
        return load_codec(model, choice)
    except UserError as error:
        if choice.named is not None:
            raise
        try:
            return load_codec(model, FormatChoice("no-tools"))
        except UserError:
            # Nobody named that format.
            raise error from None


def codec_of(model: str | Path, tokenizer: Any, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """`load_codec` of a model whose tokenizer is loaded."""
    own, source = model_format(model, tokenizer)
    named = choice.named
    if named is None:
        return codec_for(tokenizer, own, source)
    wanted = named_format(named, own, source)
    differing = differences(own, wanted, source)
    if differing and not choice.forced:
        raise UserError(
            f"{model} has a format of its own ({source}), which differs from {named} in: {', '.join(differing)}",
            "Omit the format. chat, eval, serve and format show take --force-format; results then name the format.",
        )
    return codec_for(tokenizer, wanted, f"{named}, forced" if differing else named)


def load_tokenizer(model: str | Path) -> Any:
    """Returns the tokenizer of a model folder or hub id. Raises UserError if it cannot be loaded.

    A hub that is out of reach is asked once.
    """
    from transformers import AutoTokenizer

    check_tokenizer(model)
    if not Path(model).is_dir():
        check_on_hub(str(model), "tokenizer_config.json", "tokenizer.json", "tokenizer.model")
    try:
        return AutoTokenizer.from_pretrained(str(model))
    # Of files that are damaged the libraries raise anything, their own types too.
    except Exception as error:
        raise no_tokenizer(model, " ".join(str(error).split())[:200] or type(error).__name__) from error


def check_tokenizer(model: str | Path) -> None:
    """Raise a UserError for a folder without a tokenizer's files, of which transformers would make an empty one."""
    folder = Path(model)
    if folder.is_dir() and not any(any(folder.glob(name)) for name in _TOKENIZER_FILES):
        raise no_tokenizer(model, "it has no tokenizer")


def no_tokenizer(model: str | Path, why: str) -> UserError:
    """The error for a model whose tokenizer cannot be loaded."""
    hint = f"The folder needs tokenizer.json and tokenizer_config.json beside the weights ({why})."
    return UserError(f"cannot load a tokenizer from {model}", hint)


def model_format(model: str | Path, tokenizer: Any) -> tuple[Format, str]:
    """Returns a model's own format and where it comes from.

    Raises UserError if the model's format file and its chat template disagree, or if `family_of` does.
    """
    template, record = _own_template(tokenizer), _format_file(model)
    if record is not None:
        stored = read_format(str(record))
        if template is not None and template.strip() != stored.template.strip():
            raise UserError(
                f"{model}: the chat template of the tokenizer is not the one in {FORMAT_FILE}",
                f"Remove {FORMAT_FILE} to use the tokenizer's, or copy both again from the trained model.",
            )
        return stored, FORMAT_FILE
    if template is None:
        return ours(), OURS
    fmt = read_format(OWN, template)
    found = family_of(tokenizer, template, _model_types(model))
    if found is None:
        return fmt, "its own chat template"
    return _of_family(fmt, *found), "its own chat template"


def named_format(named: str, own: Format, source: str) -> Format:
    """`read_format` of a format that is named for a model whose own one is as of `model_format`."""
    # A model without a chat template, for which ours is taken otherwise, has none in a family either.
    fmt = read_format(named, "" if named in FAMILIES and source == OURS else own.template)
    if fmt.family is not None and fmt.family == own.family and not fmt.family_options:
        return fmt.model_copy(update={"family_options": own.family_options})
    return fmt


def _of_family(fmt: Format, family: str, options: dict[str, Any]) -> Format:
    calls = 1 if FAMILIES[family].one_call else fmt.calls_per_turn
    return fmt.model_copy(update={"family": family, "family_options": options, "calls_per_turn": calls})


def _model_types(model: str | Path) -> list[str]:
    """What config.json says a model is, and its part for text; nothing if there is no config.json to read."""
    from transformers import PreTrainedConfig

    if Path(model).is_dir():
        config = read_json(Path(model) / "config.json") or {}
    else:
        try:
            config, _ = PreTrainedConfig.get_config_dict(str(model))
        except OSError:  # There is no config.json, or it cannot be fetched.
            return []
    parts = (config, config.get("text_config") or {})
    return [str(part["model_type"]) for part in parts if part.get("model_type")]


def _own_template(tokenizer: Any) -> str | None:
    """A tokenizer's chat template; of several, the one for tools."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    return None if template is None else str(template)


def _format_file(model: str | Path) -> Path | None:
    """A model's format file; of a hub id, the one in the hub's cache, or fetched from there."""
    if Path(model).is_dir():
        record = Path(model) / FORMAT_FILE
        return record if record.exists() else None
    from transformers.utils import cached_file

    found = cached_file(
        str(model),
        FORMAT_FILE,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def differences(own: Format, wanted: Format, source: str) -> list[str]:
    """What differs between a model's format, as of `model_format`, and another, of all that a reply is written by.

    The time and memory that a call may take are the user's to choose. Of a model without a format file only the
    template counts.
    """
    if source == FORMAT_FILE:
        free: Any = {"examples": True, "limits": {"seconds", "memory_mb"}}
        return changed_keys(own.model_dump(exclude=free), wanted.model_dump(exclude=free))
    if None not in (own.family, wanted.family) and own.family != wanted.family:
        return ["family"]
    return [] if source == OURS or own.template == wanted.template else ["template"]
