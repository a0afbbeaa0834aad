"""What each token is, and where it stands beside calls and replies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rstar2.analysis.tokens import KINDS, NUMBER, TokenReader, _spans, after_reply, events
from rstar2.errors import UserError
from rstar2.loop.trace import Turn


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
        TokenReader(tokenizer).read_all([shifted])
    with pytest.raises(UserError, match="another tokenizer"):
        TokenReader(tokenizer).read_all([trace] * 8 + [shifted] * 2)


def test_a_turn_that_differs_is_not_yet_another_tokenizer(tokenizer: Any, make_trace: Any) -> None:
    odd, trace = make_trace(), make_trace()
    odd.turns[0].text = "something else"
    assert len(TokenReader(tokenizer).read_all([odd, trace, trace])) == 3


def test_what_the_template_wrote_of_a_turn_belongs_to_its_first_token(
    tokenizer: Any, make_trace: Any
) -> None:
    trace, plain = make_trace(()), make_trace(())
    trace.turns[0].text = "<reason>\n" + trace.turns[0].text
    (tokens,), (others,) = TokenReader(tokenizer).read_all([trace]), TokenReader(tokenizer).read_all([plain])
    assert tokens.characters.sum() == len(trace.turns[0].text)
    assert tokens.characters[0] == others.characters[0] + len("<reason>\n")
    assert (tokens.kind == others.kind).all()


def _llama_like() -> Any:
    """A tokenizer that writes spaces as Llama 2 and Mistral do, and drops the one before the first word."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "</s>", "\u2581", "\u2581But", "\u2581it", "\u2581is", ".", "\u2581a", "a"]
    raw = Tokenizer(models.BPE({**{word: i for i, word in enumerate(words)}, "<0xF0>": 9, "<0x9F>": 10,
                                "<0x99>": 11, "<0x82>": 12}, [], unk_token="<unk>"))  # fmt: skip
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>")


def test_spaces_are_kept_where_a_tokenizer_drops_the_first(make_trace: Any) -> None:
    tokenizer = _llama_like()
    for ids, texts in (
        ([3, 4, 5, 6, 1], ["But", " it", " is", ".", ""]),
        ([1, 3, 9, 10, 11, 12, 4], ["", "But", "\U0001f642", "", "", "", " it"]),
        ([2, 3], ["", " But"]),
        ([9, 10, 11, 12], ["\U0001f642", "", "", ""]),
    ):
        assert "".join(texts) == tokenizer.decode(ids, skip_special_tokens=True)
        assert TokenReader(tokenizer).texts(ids) == texts


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


def test_a_tag_that_is_only_mentioned_begins_no_call() -> None:
    mention = Turn(text="a <tool_call> b</reason><answer>4", start=0, end=1)
    spans = [(start, KINDS[kind]) for start, kind in _spans(mention, 0)]
    assert spans == [(0, "tag"), (0, "prose"), (15, "tag"), (32, "answer"), (33, "tag")]
    body = '<tool_call>{"code": "x"}'
    called = Turn(text=f"{body}</tool_call> c", start=0, end=1)
    assert [KINDS[kind] for _, kind in _spans(called, 0)] == [
        "tag", "tag", "call", "code", "call", "tag", "tag", "prose", "tag"
    ]  # fmt: skip
