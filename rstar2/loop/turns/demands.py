"""Finds out whether the texts of a prompt ask for a thought, an answer block or a box, and whether a turn has these
parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rstar2.loop.formats.format import Format
from rstar2.loop.turns import tags

Message = dict[str, Any]

QUESTION_MARK = "THE QUESTION"
"""Placeholder for a question. It marks the end of the text that a template writes before a question."""


@dataclass(frozen=True)
class Demands:
    """The parts of a turn that a text asks for."""

    thought: str = ""
    """The tag that begins the thought, such as `<reason>`. The tag is empty if the text asks for no thought."""
    answer: bool = False
    box: bool = False

    def __bool__(self) -> bool:
        return bool(self.thought) or self.answer or self.box

    def __or__(self, other: Demands) -> Demands:
        return Demands(self.thought or other.thought, self.answer or other.answer, self.box or other.box)


def demands_of(text: str) -> Demands:
    r"""Returns the parts that a system text or user text asks for: a thought in tags, `<answer>`, `\boxed`."""
    requested = tags.requested_tags(text)
    thought = next(iter(sorted(requested - {tags.ANSWER}, key=text.find)), "")
    return Demands(thought, tags.ANSWER in requested, "\\boxed" in text)


@dataclass(frozen=True)
class FormatTexts:
    """The texts that a format puts around conversations, and the parts of a turn that these texts ask for."""

    format: Format
    opening: Demands
    """The parts that the text before the first question asks for, unless the conversation has its own system text."""
    turn_start: str = ""
    """The text of a turn that the generation prompt already contains, such as `<reason>`."""

    thought_tag: str = ""
    """The tag that begins a thought in turns of the model family. The tag is empty if the family has no tag for
    thoughts."""
    drops_thoughts: bool = False
    """Whether turns of the model family cannot contain a thought."""
    forgets_thoughts: bool = False
    """Whether prompts of the model family leave out the thoughts of turns before the last question."""
    every_turn_thinks: bool = False
    """Whether the generation prompt of the model family begins a thought."""

    @cached_property
    def question(self) -> Demands:
        """The parts that the text around a problem asks for."""
        return demands_of("".join(self.format.around_problem))

    @property
    def rewarded(self) -> Demands:
        """The parts that a turn needs so that RL rewards its answer."""
        return self.opening | self.question

    @property
    def opens_thought(self) -> bool:
        """Whether every turn begins inside a thought."""
        return tags.opens_thought(self.turn_start)

    def learns(self, before_last_question: bool, has_thought: bool) -> bool:
        """Whether SFT learns from a turn.

        SFT skips a turn if later prompts leave out its thought, because the model would learn to answer without a
        thought.
        """
        forgotten = before_last_question and self.forgets_thoughts
        return not (forgotten and (has_thought or self.every_turn_thinks))

    def meets(self, turn: Message, demands: Demands, may_be_empty: bool) -> bool:
        """Whether a turn has all parts that `demands` asks for. A turn with a call needs no answer and no box.

        If `may_be_empty` is set, an empty thought counts as a thought.
        """
        text = tags.message_text(turn)
        if demands.thought and not self._has_thought(turn, text, demands.thought, may_be_empty):
            return False
        if tags.find_calls(text):
            return True
        final = tags.after_reasoning(text)
        if demands.answer:
            final, closed, _ = final.partition(tags.ANSWER)[2].partition(tags.ANSWER_END)
            if not closed:
                return False
        return not demands.box or tags.BOX.search(final) is not None

    def _has_thought(self, turn: Message, text: str, tag: str, may_be_empty: bool) -> bool:
        if self.format.family is not None:
            return tag == self.thought_tag and bool(turn.get("reasoning_content"))
        begins = text.lstrip().startswith(tag)
        if self.opens_thought and not begins:
            return may_be_empty and tag == self.turn_start.strip()
        read = tags.leading_thought(text)
        return begins and (may_be_empty or (read is not None and bool(read[0])))


def opening_demands(fmt: Format, before_question: str) -> Demands:
    """Returns the parts that the text before the first question asks for.

    The text before the first question is the format's system text, or else `before_question`, which the template itself
    writes before a question.
    """
    return demands_of(before_question if fmt.system is None else fmt.system)


def format_texts(fmt: Format) -> FormatTexts:
    """Returns the texts of a format that has a template. The function needs no tokenizer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [[{"role": "user", "content": QUESTION_MARK}]], chat_template=fmt.template, add_generation_prompt=True
    )
    before, _, after = rendered[0].partition(QUESTION_MARK)
    start = next((tag for tag in tags.REASONING_STARTS if after.endswith(tag)), "")
    return FormatTexts(fmt, opening_demands(fmt, before), start)
