"""Sends requests to an OpenAI-compatible server with a client library, and prints the replies as one line of JSON.

Run this script in an environment with the libraries: `python clients.py LIBRARY URL KEY MODEL FOLDER`. The library
writes its settings and logs to the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

QUESTION = "What is 6 * 7?"
STOP = ["Question:", "\n"]
"""Texts in the agent's thought and program that must not be in its answer."""


def litellm(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # without a network
    import litellm as library

    messages = [{"role": "user", "content": QUESTION}]
    request = {
        "model": f"openai/{model}",
        "api_base": url,
        "api_key": key,
        "messages": messages,
        "stop": STOP,
    }
    message = library.completion(**request).choices[0].message
    parts = [chunk.choices[0].delta for chunk in library.completion(**request, stream=True)]
    return {
        "whole": message.content,
        "streamed": "".join(part.content or "" for part in parts),
        "reasoning": message.reasoning_content,
    }


def langchain(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    import openai
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Number(BaseModel):
        value: int

    chat = ChatOpenAI(model=model, base_url=url, api_key=key, stop_sequences=STOP, max_retries=0)
    try:
        structured = str(chat.with_structured_output(Number, method="json_schema").invoke(QUESTION))
    except openai.BadRequestError as error:
        structured = str(error)
    return {
        "whole": chat.invoke(QUESTION).content,
        "streamed": "".join(str(chunk.content) for chunk in chat.stream(QUESTION)),
        "structured": structured,
    }


def pydantic_ai(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    chat_model = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=key))
    agent = Agent(chat_model, system_prompt="Be brief.")

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as result:
            return str(await result.get_output())

    answer = agent.run_sync(QUESTION)
    parts = [part for message in answer.all_messages() for part in message.parts]
    thought = "".join(part.content for part in parts if part.part_kind == "thinking")
    return {"whole": answer.output, "streamed": asyncio.run(streamed()), "reasoning": thought}


def llm(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    models = f"- model_id: agent\n  model_name: {model}\n  api_base: {url}\n  api_key_name: agent\n"
    (folder / "extra-openai-models.yaml").write_text(models)
    (folder / "keys.json").write_text(json.dumps({"agent": key}))
    env = {**os.environ, "LLM_USER_PATH": str(folder)}

    def ask(*more: str) -> str:
        words = [str(Path(sys.executable).with_name("llm")), "-m", "agent", *more, QUESTION]
        process = subprocess.run(words, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    return {"whole": ask("--no-stream"), "streamed": ask()}


def inspect_ai(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    os.environ |= {"AGENT_BASE_URL": url, "AGENT_API_KEY": key, "INSPECT_LOG_DIR": str(folder)}
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    task = Task(dataset=[Sample(QUESTION, target="42")], scorer=includes())
    settings = {"max_tokens": 500, "temperature": 0, "stop_seqs": STOP}
    [log] = eval(task, model=f"openai-api/agent/{model}", display="none", **settings)
    assert log.status == "success", log.error
    [sample] = log.samples
    message = sample.output.message
    parts = message.content if isinstance(message.content, list) else []
    thought = "".join(part.reasoning for part in parts if part.type == "reasoning")
    return {"whole": message.text, "right": str(sample.scores["includes"].value) == "C", "reasoning": thought}


def lm_eval(url: str, key: str, model: str, folder: Path) -> dict[str, Any]:
    os.environ |= {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    (folder / "rows.jsonl").write_text(json.dumps({"question": QUESTION, "answer": "42"}) + "\n")
    task = {
        "task": "six",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": STOP, "do_sample": False},
        "filter_list": [
            {
                "name": "number",
                "filter": [
                    {"function": "regex", "regex_pattern": r"(\d+)"},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [{"metric": "exact_match"}],
    }
    # Every JSON text is also YAML.
    (folder / "six.yaml").write_text(json.dumps(task))
    import lm_eval as library
    from lm_eval.tasks import TaskManager

    about = {"model": model, "base_url": f"{url}/chat/completions", "num_concurrent": 1, "max_retries": 1}
    results = library.simple_evaluate(
        "local-chat-completions",
        model_args=about,
        tasks=["six"],
        apply_chat_template=True,
        log_samples=True,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    [sample] = results["samples"]["six"]
    return {
        "whole": sample["resps"][0][0],
        "right": float(results["results"]["six"]["exact_match,number"]) == 1.0,
    }


if __name__ == "__main__":
    library, url, key, model, folder = sys.argv[1:]
    print(json.dumps(globals()[library](url, key, model, Path(folder))))
