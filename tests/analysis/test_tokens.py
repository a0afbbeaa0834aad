"""What each token is, and where it stands beside calls and replies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rstar2.analysis.tokens import KINDS, NUMBER, TokenReader, after_reply, events
from rstar2.errors import UserError


def _text_by_kind(tokenizer: Any, trace: Any) -> dict[str, str]:
    tokens = TokenReader(tokenizer).read(trace)
    text, at, found = "".join(turn.text for turn in trace.turns), 0, dict.fromkeys(KINDS, "")
    for size, kind in zip(tokens.characters.tolist(), tokens.kind.tolist(), strict=True):
        found[KINDS[kind]] += text[at : at + size]
        at += size
    assert at == len(text)
    return found


def test_every_character_of_a_trace_is_prose_code_call_answer_or_tag(tokenizer: Any, make_trace: Any) -> None:
    found = _text_by_kind(tokenizer, make_trace())
    # A token that holds the end of one kind and the beginning of another is of the first letter's.
    assert "Let me check." in found["prose"]
    assert "But it is four." in found["prose"]
    assert "import math" in found["code"]
    assert "sqrt(16))" in found["code"]
    assert "python_code_with_standard_io" in found["call"]
    assert "boxed{4" in found["answer"]
    assert found["tag"].count("reason") == 2


def test_a_tag_inside_code_is_code_and_a_call_that_is_cut_off_goes_to_the_end(
    tokenizer: Any, make_trace: Any
) -> None:
    cut = 'So.</reason>\n<tool_call>\n{"name": "p", "arguments": {"code": "print(\'<answer>\')'
    found = _text_by_kind(tokenizer, make_trace((), last=cut))
    assert "<answer>" in found["code"].replace(" ", "")
    assert found["answer"] == ""


def test_a_character_over_several_tokens_belongs_to_the_first(tokenizer: Any, make_trace: Any) -> None:
    trace = make_trace((), last="√π≈1.77 日本語 🙂 done</reason>")
    tokens = TokenReader(tokenizer).read(trace)
    assert tokens.characters.sum() == len(trace.turns[0].text)
    assert len(tokens.characters) > len(trace.turns[0].text) // 2
    assert NUMBER in tokens.words


def test_words_are_whole_whatever_their_tokens(tokenizer: Any, make_trace: Any) -> None:
    tokens = TokenReader(tokenizer).read(
        make_trace((), last="I double-check Everything, but before that 12.")
    )
    assert set(tokens.words) >= {"double-check", "everything", "but", "before", NUMBER, ","}


def test_traces_of_another_tokenizer_are_named(tokenizer: Any, make_trace: Any) -> None:
    trace = make_trace()
    shifted = trace.model_copy(update={"response_ids": [token + 1 for token in trace.response_ids]})
    with pytest.raises(UserError, match="another tokenizer"):
        TokenReader(tokenizer).read(shifted)


def test_replies_are_found_with_their_outcome_and_lost_calls_are_left_out(
    tokenizer: Any, make_trace: Any
) -> None:
    trace = make_trace(("error", "lost", "ok"))
    tokens = TokenReader(tokenizer).read(trace)
    found = list(events(tokens, trace))
    assert [event.outcome for event in found] == ["failed", "ok"]
    sizes = [turn.end - turn.start for turn in trace.turns]
    assert [event.reply for event in found] == [sizes[0], sum(sizes[:3])]
    for event in found:
        before = "".join(tokens.words[event.first : event.call])
        assert before.startswith("let")
        assert "tool" in "".join(tokens.words[event.call : event.reply])
        assert KINDS[tokens.kind[event.call]] == "tag"
    after = after_reply(tokens, trace)
    assert (after[: sizes[0]] == -1).all()
    assert (after[sizes[0] :][: sizes[1]] == np.arange(sizes[1])).all()
