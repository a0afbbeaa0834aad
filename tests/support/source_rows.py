"""One row of each training source, with its real columns."""

from __future__ import annotations

import json
from typing import Any

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "dict",
        "properties": {"city": {"type": "str"}, "days": {"type": "int", "description": "How many."}},
        "required": ["city"],
    },
}
TOOLACE_SYSTEM = (
    "You are an expert in composing functions. Here is a list of functions in JSON format that you can invoke:\n"
    f"{json.dumps([WEATHER])}. \nShould you decide to return the function call(s), put it in the format of "
    "[func1(params_name=params_value)]\n"
)


def glaive_chat(*turns: tuple[str, str]) -> str:
    return "\n\n\n".join(f"{speaker}: {text}" for speaker, text in turns)


ROWS: dict[str, dict[str, Any]] = {
    "dapo": {"prompt": "What is $6\\cdot 7$?", "reward_model": {"ground_truth": "42", "style": "rule"}},
    "openmathreasoning": {
        "problem": "Find the least prime above 90.",
        "expected_answer": "97",
        "problem_type": "has_answer_extracted",
        "problem_source": "aops_c6_high_school_olympiads",
        "pass_rate_72b_tir": "0.65625",
        "generated_solution": "…",
    },
    "project-euler": {"id": 1, "problem": "Sum the multiples of 3 or 5 below 1000.", "answer": 233168},
    "toolace": {
        "system": TOOLACE_SYSTEM,
        "conversations": [
            {"from": "user", "value": "Will it rain in Zürich?"},
            {"from": "assistant", "value": '[get_weather(city="Zürich", days=2)]'},
            {"from": "tool", "value": '[{"name": "get_weather", "results": {"rain": true}}]'},
            {"from": "assistant", "value": "Yes, take an umbrella."},
        ],
    },
    "apigen-mt": {
        "system": "You are a travel agent.",
        "tools": json.dumps([WEATHER]),
        "conversations": [
            {"from": "human", "value": "Will it rain in Zürich?"},
            {
                "from": "function_call",
                "value": '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}',
            },
            {"from": "observation", "value": '{"rain": true}'},
            {"from": "gpt", "value": "Yes, take an umbrella."},
        ],
    },
    "glaive-v2": {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions. Use them if "
        f"required -\n{json.dumps(WEATHER, indent=4)}\n",
        "chat": glaive_chat(
            ("USER", "Will it rain in Zürich?"),
            (
                "ASSISTANT",
                '<functioncall> {"name": "get_weather", "arguments": \'{"city": "Zürich", "days": 2}\'} '
                "<|endoftext|>",
            ),
            ("FUNCTION RESPONSE", '{"rain": true}'),
            ("ASSISTANT", "Yes, take an umbrella. <|endoftext|>"),
        ),
    },
    "glaive-sharegpt": {
        "conversations": [
            {"from": "human", "value": "Will it rain in Zürich?"},
            {
                "from": "function_call",
                "value": '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}',
            },
            {"from": "observation", "value": '{"rain": true}'},
            {"from": "gpt", "value": "Yes, take an umbrella."},
        ],
        "tools": json.dumps([WEATHER]),
    },
    "magicoder": {
        "problem": "Print the squares below ten.",
        "solution": "A loop does it:\n```python\nfor n in range(10):\n    print(n * n)\n```\nThat is all.",
        "lang": "python",
    },
    "tulu3": {
        "prompt": "Answer in three words.",
        "messages": [
            {"role": "user", "content": "Answer in three words."},
            {"role": "assistant", "content": "Just like this."},
        ],
        "constraints": ["length constraints:number of words"],
    },
    "llama-nemotron": {
        "input": [{"role": "user", "content": "Hello?"}],
        "output": "Hello! What can I do for you?",
        "reasoning": "off",
        "system_prompt": "detailed thinking off",
        "category": "chat",
        "license": "odc-by",
        "generator": "Llama-3.3-70B-Instruct",
    },
}
