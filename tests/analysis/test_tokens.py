"""Tests of token kinds, with several tokenizers, and of the position of tokens relative to calls and replies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rstar2.analysis.kinds import KINDS, NUMBER, kinds_of, words_of
from rstar2.analysis.tokens import TokenReader, after_reply, events, outcome
from rstar2.errors import UserError
from rstar2.loop.trace import Turn
from rstar2.loop.turns.turn import Part


def _text_by_kind(tokenizer: Any, trace: Any) -> dict[str, str]:
    tokens = TokenReader(tokenizer).read(trace)
    text, at, text_by_kind = "".join(turn.text for turn in trace.turns), 0, dict.fromkeys(KINDS, "")
    for size, kind in zip(tokens.characters.tolist(), tokens.kind.tolist(), strict=True):
        text_by_kind[KINDS[kind]] += text[at : at + size]
        at += size
    assert at == len(text)
    return text_by_kind


def test_every_character_of_a_trace_has_a_kind(tokenizer: Any, make_trace: Any) -> None:
    text_by_kind = _text_by_kind(tokenizer, make_trace())
    # A token that ends one kind and begins another has the kind of its first letter.
    assert text_by_kind["word"] == "Let me checkBut it is four"
    assert text_by_kind["sign"].split() == [".", "."]
    assert "import math" in text_by_kind["code"]
    assert "sqrt(16))" in text_by_kind["code"]
    assert "python_code_with_standard_io" in text_by_kind["call"]
    assert "boxed{4" in text_by_kind["answer"]
    assert text_by_kind["tag"].count("reason") == 2


def test_a_tag_inside_code_is_code_and_a_call_that_is_cut_off_goes_to_the_end(
    tokenizer: Any, make_trace: Any
) -> None:
    cut_text = 'So.</reason>\n<tool_call>\n{"name": "p", "arguments": {"code": "print(\'<answer>\')'
    text_by_kind = _text_by_kind(tokenizer, make_trace((), last=cut_text))
    assert "<answer>" in text_by_kind["code"].replace(" ", "")
    assert text_by_kind["answer"] == ""


def test_a_character_over_several_tokens_belongs_to_the_first(tokenizer: Any, make_trace: Any) -> None:
    trace = make_trace((), last="√π≈1.77 日本語 🙂 done</reason>")
    tokens = TokenReader(tokenizer).read(trace)
    assert tokens.characters.sum() == len(trace.turns[0].text)
    assert len(tokens.characters) > len(trace.turns[0].text) // 2
    assert NUMBER in tokens.words


def test_the_rest_of_a_character_is_of_its_first_tokens_kind(tokenizer: Any, make_trace: Any) -> None:
    text = "日本語 🙂</reason>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    trace = make_trace((), last=text)
    tokens = TokenReader(tokenizer).read(trace)
    kinds = [KINDS[kind] for kind in tokens.kind]
    split = [place for place, size in enumerate(tokens.characters[: len(ids)]) if size == 0]
    assert len(split) > 3
    assert {kinds[place] for place in split} == {"word", "sign"}
    assert kinds[len(ids)] == "tag"  # the end of the turn
    assert [word for word in dict.fromkeys(tokens.words[: split[-1] + 1]) if word] == [*"日本語", "🙂"]


def test_words_are_whole_whatever_their_tokens(tokenizer: Any, make_trace: Any) -> None:
    tokens = TokenReader(tokenizer).read(
        make_trace((), last="I double-check Everything, but before that 12.")
    )
    assert set(tokens.words) >= {"double-check", "everything", "but", "before", NUMBER, ","}


def test_traces_of_another_tokenizer_are_named(tokenizer: Any, make_trace: Any) -> None:
    trace = make_trace()
    shifted = trace.model_copy(update={"response_ids": [token + 1 for token in trace.response_ids]})
    with pytest.raises(UserError, match="not written with the tokenizer of"):
        TokenReader(tokenizer).read_all([shifted])
    with pytest.raises(UserError, match="not written with the tokenizer of"):
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
    """A tokenizer that writes spaces like Llama 2 and Mistral, and drops the space before the first word."""
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
        assert TokenReader(tokenizer).texts(ids)[0] == texts


def test_replies_are_found_with_their_outcome_and_lost_calls_are_left_out(
    tokenizer: Any, make_trace: Any
) -> None:
    trace = make_trace(("error", "lost", "ok"), output="ValueError: no")
    tokens = TokenReader(tokenizer).read(trace)
    event_list = list(events(tokens, trace))
    assert [event.outcome for event in event_list] == ["ValueError", "ok"]
    sizes = [turn.end - turn.start for turn in trace.turns]
    assert [event.reply for event in event_list] == [sizes[0], sum(sizes[:3])]
    for event in event_list:
        before = "".join(tokens.words[event.first : event.call])
        assert before.startswith("let")
        assert "tool" in "".join(tokens.words[event.call : event.reply])
        assert KINDS[tokens.kind[event.call]] == "tag"
    after = after_reply(tokens, trace)
    assert (after[: sizes[0]] == -1).all()
    assert (after[sizes[0] :][: sizes[1]] == np.arange(sizes[1])).all()


def _kinds(turn: Turn) -> list[tuple[str, str]]:
    """Splits a turn's text where the kind changes. Returns (kind, text) pairs without surrounding white space."""
    stretches: list[tuple[str, str]] = []
    for letter, kind in zip(turn.text, kinds_of(turn).tolist(), strict=True):
        if stretches and stretches[-1][0] == KINDS[kind]:
            stretches[-1] = (KINDS[kind], stretches[-1][1] + letter)
        else:
            stretches.append((KINDS[kind], letter))
    return [(kind, text.strip()) for kind, text in stretches if text.strip()]


def test_a_tag_that_is_only_mentioned_begins_no_call() -> None:
    mention = Turn(text="a <tool_call> b</reason><answer>4", start=0, end=1)
    assert _kinds(mention) == [
        ("word", "a"), ("tag", "<tool_call>"), ("word", "b"), ("tag", "</reason><answer>"), ("answer", "4")
    ]  # fmt: skip
    body = '<tool_call>{"code": "x"}'
    turn_with_call = Turn(text=f"{body}</tool_call> c", start=0, end=1)
    assert _kinds(turn_with_call) == [
        ("tag", "<tool_call>"), ("call", '{"code": "'), ("code", "x"), ("call", '"}'), ("tag", "</tool_call>"),
        ("word", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Wait, 3.5 and 1,000!", [("word", "Wait"), ("sign", ","), ("number", "3.5"), ("word", "and"),
                                  ("number", "1,000"), ("sign", "!")]),
        ("So x² = ½", [("word", "So"), ("word", "x"), ("number", "²"), ("sign", "="), ("number", "½")]),
        ("don’t double-check", [("word", "don’t"), ("word", "double-check")]),
        ("हिन्दी café", [("word", "हिन्दी"), ("word", "café")]),
        ("If $x^2+1$ or \\frac{a}", [("word", "If"), ("sign", "$x^"), ("number", "2"), ("sign", "+"), ("number", "1"),
                                     ("sign", "$"), ("word", "or"), ("sign", "\\frac{"), ("word", "a"), ("sign", "}")]),
        ("It costs $5 and $6", [("word", "It"), ("word", "costs"), ("sign", "$"), ("number", "5"), ("word", "and"),
                                ("sign", "$"), ("number", "6")]),
        ("Run `print(1)`:\n```python\nx = 1", [("word", "Run"), ("code", "`print(1)`"), ("sign", ":"),
                                              ("code", "```python\nx = 1")]),
        ("a<|end|>b <b c> d", [("word", "a"), ("tag", "<|end|>"), ("word", "b"), ("sign", "<"), ("word", "b"),
                               ("word", "c"), ("sign", ">"), ("word", "d")]),
    ],
)  # fmt: skip
def test_prose_has_words_numbers_signs_code_and_markup(text: str, kinds: list[tuple[str, str]]) -> None:
    assert [(kind, part) for kind, part in _kinds(Turn(text=text, start=0, end=1)) if part] == kinds


def test_words_are_named_in_small_letters_and_scripts_without_spaces_by_their_characters() -> None:
    names, places = words_of("But 日本, 12.5 हिन्दी")
    assert names == ["but", "日", "本", ",", NUMBER, ".", NUMBER, "हिन्दी", ""]
    assert [names[place] for place in places[:4]] == ["but", "but", "but", ""]


def test_pieces_of_words_have_the_same_kind_with_any_tokenizer(make_trace: Any) -> None:
    """SentencePiece's sign for a space, and bytes of a character that the vocabulary lacks."""
    tokenizer = _llama_like()
    trace = make_trace(()).model_copy(
        update={
            "response_ids": [3, 8, 4, 9, 10, 11, 12, 6, 1],
            "response_mask": [1] * 9,
            "turns": [Turn(text="Buta it\U0001f642.", start=0, end=9)],
        }
    )
    tokens = TokenReader(tokenizer).read(trace)
    assert [KINDS[kind] for kind in tokens.kind] == ["word"] * 3 + ["sign"] * 5 + ["tag"]
    assert tokens.words == ["buta", "buta", "it", *["\U0001f642"] * 4, ".", ""]


def test_a_turn_of_a_family_keeps_the_text_of_its_special_tokens(make_trace: Any) -> None:
    """Turns in the form of gpt-oss: its channels and the ends of its messages are special tokens."""
    from support.family_tokenizers import family_tokenizer

    tokenizer = family_tokenizer("qwen3.5")
    text = "<|vision_start|>I see.<|vision_end|><|vision_start|>It is 4."
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    parts = [Part("thought", 16, 22), Part("text", 52, 60)]
    turn = Turn(text=text, start=0, end=len(ids), parts=parts, tagged=False)
    trace = make_trace(()).model_copy(
        update={"response_ids": ids, "response_mask": [1] * len(ids), "turns": [turn]}
    )
    [tokens, *_] = TokenReader(tokenizer).read_all([trace] * 4)
    assert tokens.characters.sum() == len(text)
    by_kind = {
        kind: tokenizer.decode([i for i, of in zip(ids, tokens.kind, strict=True) if KINDS[of] == kind])
        for kind in ("word", "number", "tag")
    }
    assert by_kind == {
        "word": "IseeItis",
        "number": "4",
        "tag": "<|vision_start|><|vision_end|><|vision_start|><|endoftext|>",
    }


def test_the_outcome_of_a_turn_is_its_first_failure_unless_a_call_was_lost(make_trace: Any) -> None:
    turns = make_trace(("ok", "error", "timeout", "lost"), output="NameError: name 'x' is not defined").turns
    assert [outcome(turn) for turn in turns] == ["ok", "NameError", "timeout", "lost", ""]
    both = turns[0].model_copy(update={"calls": [*turns[0].calls, *turns[2].calls, *turns[1].calls]})
    assert outcome(both) == "timeout"
    assert outcome(both.model_copy(update={"calls": [*both.calls, *turns[3].calls]})) == "lost"
