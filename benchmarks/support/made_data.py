"""Generates sources for the mixtures `paper-rl` and `paper-sft`, with a known number of faults."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

_SYLLABLES = [one + two for one in "bcdfghklmn" for two in "ae"]
_VOCABULARY = [
    f"{one}{two}{three}" for one in _SYLLABLES for two in _SYLLABLES for three in ("n", "r", "st", "l")
]
_TOOLS = 3000
"""The number of different tools. In sources with tool calls, each row lists one of these tools."""
_SHARED = 2000
"""The maximal number of rows of a source that the next source may repeat."""

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row, str]]
"""(source, row, reason) triples. The reason says why the row must be dropped; it is '' if the row must be kept."""
PROBLEM_SHARES = {"dapo": 0.35, "openmathreasoning": 0.64, "project-euler": 0.01}
CONVERSATION_SHARES = {
    **{"toolace": 0.05, "apigen-mt": 0.02, "glaive-v2": 0.44, "magicoder": 0.25, "tulu3": 0.11},
    "llama-nemotron": 0.13,
}


def words(rng: random.Random, least: int, most: int) -> list[str]:
    return rng.choices(_VOCABULARY, k=rng.randint(least, most))


def _problem(source: str, text: object, answer: object, rate: object = "0.5") -> Row:
    if source == "dapo":
        return {"prompt": text, "reward_model": {"ground_truth": answer}}
    if source == "openmathreasoning":
        return {"problem": text, "expected_answer": answer, "pass_rate_72b_tir": rate}
    return {"problem": text, "answer": answer}


def problems(count: int, seed: int, measured: list[str]) -> Rows:
    """Generate about `count` rows of the three sources.

    About 2 % of the rows have each fault. If two rows contradict each other, both must be dropped. If one repeats the
    other, the later one must be dropped.
    """
    rng = random.Random(seed)
    repeated: list[tuple[str, str]] = []
    for source, share in PROBLEM_SHARES.items():
        rows_of_source = round(count * share)
        for text, answer in repeated[: rows_of_source // 10]:
            yield source, _problem(source, text, answer), "duplicates"
        clean: list[tuple[str, str]] = []
        rows_yielded = min(len(repeated), rows_of_source // 10)
        while rows_yielded < rows_of_source:
            for row, reason, text, answer in _problem_with_its_copy(source, rng, measured):
                yield source, row, reason
                rows_yielded += 1
                if not reason and len(clean) < _SHARED:
                    clean.append((text, answer))
        repeated = clean


def _problem_with_its_copy(
    source: str, rng: random.Random, measured: list[str]
) -> Iterator[tuple[Row, str, str, str]]:
    """Generate a row, sometimes with a fault, and the row that repeats or contradicts it, if any.

    Yields (row, reason, text, answer).
    """
    number, content, answer = rng.randrange(10**9), words(rng, 40, 80), str(rng.randrange(10**6))
    text = f"{' '.join(content)}, {number}?"
    other = list(content)
    other[rng.randrange(len(other))] = "changed"

    def row(reason: str, text: Any = text, answer: Any = answer, rate: Any = "0.5") -> Any:
        return _problem(source, text, answer, rate), reason, text, answer

    kind = rng.randrange(50)
    faults: dict[int, Callable[[], list[Any]]] = {
        0: lambda: [
            row("unverifiable", answer=rng.choice(["proof", "notfound", "The limit does not exist"]))
        ],
        1: lambda: [row("compound", answer=f"x={number}, y={answer}")],
        2: lambda: [row("huge", answer=rng.choice([f"6.5e{number}", "9" * 40, "10^{100}"]))],
        3: lambda: [row("integer", answer=rng.choice([f"{answer}.5", "\\sqrt{2}", "1/3"]))],
        4: lambda: [row("language", text="".join(rng.choices("天地人口山水火木金土", k=60)) + str(number))],
        5: lambda: [row("grams", text=f"{' '.join(content[:20])} {rng.choice(measured)}, {number}")],
        6: lambda: [row("malformed", text=None)],
        7: lambda: [row("contradicted"), row("contradicted", answer=str(int(answer) + 1))],
        8: lambda: [row(""), row("duplicates", text.upper().replace(",", " :"), f"${answer}$")],
        9: lambda: [row(""), row("near-duplicates", text=f"{' '.join(other)}, {number}?")],
        10: lambda: [row("length", text="very " * 1500 + str(number))],
        11: lambda: [row("agreement" * (source == "openmathreasoning"), rate=rng.choice(["0.0625", "n/a"]))],
    }
    yield from faults.get(kind, lambda: [row("")])()


def _tool(number: int) -> Row:
    properties = {"name": {"type": "string"}, "count": {"type": "integer"}}
    return {
        "name": f"look_up_{number}",
        "description": f"Looks something up in {number}.",
        "parameters": {"type": "object", "properties": properties, "required": ["name"]},
    }


def _conversation(source: str, question: Any, reply: str, tool: int, call: str) -> Row:
    """Return a conversation in the source's columns. `call` is the JSON text of the call's arguments."""
    listed, name = json.dumps(_tool(tool)), f"look_up_{tool}"
    if source == "glaive-v2":
        called = f'ASSISTANT: <functioncall> {{"name": "{name}", "arguments": \'{call}\'}} <|endoftext|>'
        chat = [f"USER: {question}", called, 'FUNCTION RESPONSE: {"found": true}', f"ASSISTANT: {reply}"]
        system = f"SYSTEM: You are a helpful assistant with access to these functions -\n{listed}\n"
        return {"system": system, "chat": None if question is None else "\n\n\n".join(chat)}
    if source == "apigen-mt":
        parts: list[tuple[str, Any]] = [
            ("human", question),
            ("function_call", f'{{"name": "{name}", "arguments": {call}}}'),
            ("observation", '{"found": true}'),
            ("gpt", reply),
        ]
        turns = [{"from": who, "value": text} for who, text in parts]
        return {"system": "You look things up.", "tools": f"[{listed}]", "conversations": turns}
    if source == "toolace":
        pairs = call.strip()[1:-1].replace('"name": ', "name=").replace('"count": ', "count=")
        parts = [
            ("user", question),
            ("assistant", f"[{name}({pairs})]"),
            ("tool", "[true]"),
            ("assistant", reply),
        ]
        turns = [{"from": who, "value": text} for who, text in parts]
        return {"system": f"You may call these functions: [{listed}].", "conversations": turns}
    if source == "magicoder":
        solution = f"Like this:\n```python\nprint({call})\n```\n{reply}"
        return {"problem": question, "solution": solution, "lang": "python"}
    if source == "tulu3":
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        return {"prompt": question, "messages": messages, "constraints": []}
    return {"input": [{"role": "user", "content": question}], "output": reply, "reasoning": "off"}


CALLING = ("glaive-v2", "apigen-mt", "toolace")


def conversations(count: int, seed: int, measured: list[str]) -> Rows:
    """Generate about `count` rows of the six sources. About 2 % of the rows have each fault."""
    rng = random.Random(seed)
    for source, share in CONVERSATION_SHARES.items():
        rows_yielded, rows_of_source = 0, round(count * share)
        while rows_yielded < rows_of_source:
            for row, reason in _conversation_with_its_copy(source, rng, measured):
                yield source, row, reason
                rows_yielded += 1


def _conversation_with_its_copy(
    source: str, rng: random.Random, measured: list[str]
) -> Iterator[tuple[Row, str]]:
    number, content, tool = rng.randrange(10**9), words(rng, 40, 80), rng.randrange(_TOOLS)
    question, reply = f"{' '.join(content)}, {number}?", " ".join(words(rng, 20, 30))
    call = json.dumps({"name": content[0], "count": number})
    kind = rng.randrange(50)
    if kind == 0 and source in CALLING:
        bad = rng.choice(['{"name": }', '{"count": 3}', f'{{"name": "x", "count": "{content[0]}"}}'])
        yield _conversation(source, question, reply, tool, bad), "bad call"
    elif kind == 1:
        yield _conversation(source, None, reply, tool, call), "malformed"
    elif kind == 2:
        shared = f"{content[0]} {rng.choice(measured)} {number}"
        yield _conversation(source, shared, reply, tool, call), "grams"
    elif kind == 3:
        yield _conversation(source, "very " * 15_000 + str(number), reply, tool, call), "length"
    elif kind == 4 and source == "magicoder":
        yield {**_conversation(source, question, reply, tool, call), "lang": "rust"}, "not Python"
    elif kind == 4 and source == "llama-nemotron":
        yield {**_conversation(source, question, reply, tool, call), "reasoning": "on"}, "reasoning"
    else:
        whole = _conversation(source, question, reply, tool, call)
        yield whole, ""
        if kind == 5:
            yield whole, "duplicates"
        elif kind == 6:
            content[5] = "changed"
            near = f"{' '.join(content)}, {number}?"
            yield _conversation(source, near, reply, tool, call), "near-duplicates"
