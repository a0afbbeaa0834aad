"""What the texts of a prompt tell the model to write: a thought, an answer block, a box. And whether a turn does so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rstar2.loop.formats.format import Format
from rstar2.loop.turns import tags

Message = dict[str, Any]

QUESTION_MARK = "THE QUESTION"
"""Stands for a question, to see what a template writes before it."""


@dataclass(frozen=True)
class Demands:
    """What a text asks for by naming its tags."""

    thought: str = ""
    """The tag that begins the thought, such as `<reason>`; empty if none is asked for."""
    answer: bool = False
    box: bool = False

    def __bool__(self) -> bool:
        return bool(self.thought) or self.answer or self.box

    def __or__(self, other: Demands) -> Demands:
        return Demands(self.thought or other.thought, self.answer or other.answer, self.box or other.box)


def demands_of(text: str) -> Demands:
    r"""What a system text or a user's text asks for: a thought in tags, `<answer>`, `\boxed`."""
    asked = tags.asked_tags(text)
    thought = next(iter(sorted(asked - {tags.ANSWER}, key=text.find)), "")
    return Demands(thought, tags.ANSWER in asked, "\\boxed" in text)


@dataclass(frozen=True)
class Wording:
    """A format's texts around conversations, and what they ask of the model's turns."""

    format: Format
    opening: Demands
    """What the text before the first question asks for, in a conversation without a system text of its own."""
    turn_start: str = ""
    """What the generation prompt already writes of a turn, such as `<reason>`."""

    thought_tag: str = ""
    """The tag with which turns of a model family begin a thought, if they have one."""
    drops_thoughts: bool = False
    """Whether turns of the model family have no place for a thought."""
    forgets_thoughts: bool = False
    """Whether prompts of the model family leave out the thoughts of turns before the last question."""
    every_turn_thinks: bool = False
    """Whether the generation prompt of the model family begins a thought."""

    @cached_property
    def question(self) -> Demands:
        """What the text around a problem asks for."""
        return demands_of("".join(self.format.around_problem))

    @property
    def rewarded(self) -> Demands:
        """What a turn that answers a problem has to hold: RL rewards it if the answer is right."""
        return self.opening | self.question

    @property
    def opens_thought(self) -> bool:
        """Whether every turn begins inside a thought."""
        return tags.opens_thought(self.turn_start)

    def learns(self, before_last_question: bool, has_thought: bool) -> bool:
        """Whether SFT learns from a turn.

        It does not if later prompts leave out the turn's thought: the model would learn to answer without one.
        """
        forgotten = before_last_question and self.forgets_thoughts
        return not (forgotten and (has_thought or self.every_turn_thinks))

    def meets(self, turn: Message, demands: Demands, may_be_empty: bool) -> bool:
        """Whether a turn has all that is asked for. A turn with a call is not final, and needs no answer yet.

        `may_be_empty`: a thought without words counts too, as in the answers of the format's own form.
        """
        text = tags.message_text(turn)
        if demands.thought and not self._has_thought(turn, text, demands.thought, may_be_empty):
            return False
        if tags.find_calls(text):
            return True
        said = tags.after_reasoning(text)
        if demands.answer:
            said, closed, _ = said.partition(tags.ANSWER)[2].partition(tags.ANSWER_END)
            if not closed:
                return False
        return not demands.box or tags.BOX.search(said) is not None

    def _has_thought(self, turn: Message, text: str, tag: str, may_be_empty: bool) -> bool:
        if self.format.family is not None:
            return tag == self.thought_tag and bool(turn.get("reasoning_content"))
        begins = text.lstrip().startswith(tag)
        if self.opens_thought and not begins:
            return may_be_empty and tag == self.turn_start.strip()
        read = tags.leading_thought(text)
        return begins and (may_be_empty or (read is not None and bool(read[0])))


def opening_demands(fmt: Format, before_question: str) -> Demands:
    """What the text before a first question asks for, given what the template writes there by itself."""
    return demands_of(before_question if fmt.system is None else fmt.system)


def wording_of(fmt: Format) -> Wording:
    """The wording of a format with a template of its own, without a tokenizer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [[{"role": "user", "content": QUESTION_MARK}]], chat_template=fmt.template, add_generation_prompt=True
    )
    before, _, after = rendered[0].partition(QUESTION_MARK)
    start = next((tag for tag in tags.REASONING_STARTS if after.endswith(tag)), "")
    return Wording(fmt, opening_demands(fmt, before), start)
