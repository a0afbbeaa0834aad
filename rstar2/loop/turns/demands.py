"""What the texts of a prompt tell the model to write: a thought, an answer block, a box. And whether a turn does so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rstar2.loop.formats.format import Format
from rstar2.loop.turns import tags

QUESTION_MARK = "THE QUESTION"
"""Stands for a question, to see what a template writes before it."""


@dataclass(frozen=True)
class Demands:
    """The tags that a text names, and so asks for."""

    thought: bool = False
    answer: bool = False
    box: bool = False

    def __bool__(self) -> bool:
        return self.thought or self.answer or self.box

    def __or__(self, other: Demands) -> Demands:
        return Demands(self.thought or other.thought, self.answer or other.answer, self.box or other.box)


def demands_of(text: str) -> Demands:
    r"""What a system text or a user's text asks for: `<reason>` or `<think>`, `<answer>`, `\boxed`."""
    thought = any(tag in text for tag in tags.REASONING_STARTS)
    return Demands(thought, tags.ANSWER in text, "\\boxed" in text)


def meets(turn: str, demands: Demands, opens_thought: bool) -> bool:
    """Whether a turn has all that is asked for. A turn with a call is not final, and needs no answer yet.

    `opens_thought`: the generation prompt opens the thought, so every turn has one.
    """
    if demands.thought and not opens_thought and not demands_of(turn).thought:
        return False
    if tags.find_calls(turn):
        return True
    said = tags.after_reasoning(turn)
    if demands.answer:
        said, closed, _ = said.partition(tags.ANSWER)[2].partition(tags.ANSWER_END)
        if not closed:
            return False
    return not demands.box or tags.BOX.search(said) is not None


@dataclass(frozen=True)
class Wording:
    """A format's texts around conversations, and what they ask of the model's turns."""

    format: Format
    opening: Demands
    """Of the text before the first question of a conversation without a system text of its own."""
    turn_start: str = ""
    """What the generation prompt already writes of a turn, such as `<reason>`."""

    @cached_property
    def question(self) -> Demands:
        """Of the text around a problem."""
        return demands_of("".join(self.format.around_problem))

    @property
    def rewarded(self) -> Demands:
        """Of a turn that answers a problem; what RL rewards if the answer is right."""
        return self.opening | self.question

    @property
    def opens_thought(self) -> bool:
        """Whether every turn begins inside a thought."""
        return tags.opens_thought(self.turn_start)


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
