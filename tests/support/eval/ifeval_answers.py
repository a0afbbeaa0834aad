"""Prompts with all kinds of IFEval instructions, and answers that follow some of them."""

from __future__ import annotations

from typing import Any

INSTRUCTIONS: dict[str, list[dict[str, Any]]] = {
    "keywords:existence": [{"keywords": ["river", "stone"]}],
    "keywords:frequency": [{"keyword": "river", "frequency": 2, "relation": "at least"}],
    "keywords:forbidden_words": [{"forbidden_words": ["stone"]}],
    "keywords:letter_frequency": [{"letter": "e", "let_frequency": 12, "let_relation": "less than"}],
    "language:response_language": [{"language": "de"}],
    "length_constraints:number_sentences": [{"num_sentences": 3, "relation": "at least"}],
    "length_constraints:number_paragraphs": [{"num_paragraphs": 2}],
    "length_constraints:number_words": [{"num_words": 25, "relation": "less than"}],
    "length_constraints:nth_paragraph_first_word": [
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "rivers"}
    ],
    "detectable_content:number_placeholders": [{"num_placeholders": 1}],
    "detectable_content:postscript": [{"postscript_marker": "P.S."}],
    "detectable_format:number_bullet_lists": [{"num_bullets": 2}],
    "detectable_format:constrained_response": [{}],
    "detectable_format:number_highlighted_sections": [{"num_highlights": 1}],
    "detectable_format:multiple_sections": [{"section_spliter": "Section", "num_sections": 2}],
    "detectable_format:json_format": [{}],
    "detectable_format:title": [{}],
    "combination:two_responses": [{}],
    "combination:repeat_prompt": [{"prompt_to_repeat": "Say a river."}],
    "startend:end_checker": [{"end_phrase": "That is all."}],
    "startend:quotation": [{}],
    "change_case:capital_word_frequency": [{"capital_frequency": 2, "capital_relation": "at least"}],
    "change_case:english_capital": [{}],
    "change_case:english_lowercase": [{}],
    "punctuation:no_comma": [{}],
}
ANSWERS = [
    "",
    "A river runs, and the river meets a stone. It is wide. It is deep.",
    "Der Fluss ist breit und der Stein liegt am Ufer, sagt der alte Mann aus dem Dorf.",
    "THE RIVER IS WIDE AND DEEP.",
    "the river is wide and deep",
    "Sure!\n\n* one river\n* two stones\n\nThat is all.",
    '"Everything here is quoted."',
    '{"river": "stone", "list": [1, 2]}',
    "<<A Title>>\nHere is *a highlight* and a [placeholder].\n\nP.S. I forgot.",
    "Section 1\nText.\nSection 2\nMore text.",
    "One answer.\n******\nAnother answer.",
    "Say a river. Here it is.",
    "First paragraph.\n\nRivers are long.",
    "First paragraph.\n***\nSecond paragraph.",
    "My answer is yes.",
    "Here you are:\n*the river is low*\nThat is all.",
]


def rows() -> list[dict[str, Any]]:
    """Return rows in IFEval's form: one prompt per kind of instruction, and some with two kinds."""
    kinds = [(name, kwargs) for name, arguments in INSTRUCTIONS.items() for kwargs in arguments]
    single = [([name], [kwargs]) for name, kwargs in kinds]
    pairs = [
        ([first_name, second_name], [first_arguments, second_arguments])
        for (first_name, first_arguments), (second_name, second_arguments) in zip(
            kinds[::2], kinds[1::2], strict=False
        )
    ]
    return [
        {"key": number, "prompt": "Say a river.", "instruction_id_list": names, "kwargs": arguments}
        for number, (names, arguments) in enumerate(single + pairs)
    ]
