"""A server that stands in for vLLM in load tests: vLLM's wire format, a steady pace of tokens, and no model.

`python benchmarks/support/token_server.py` prints its URL, and serves until its standard input closes. Every request
takes as long as its tokens take at the set pace, whatever the number of concurrent requests. Completions are generated
before the first request, so that the server needs little CPU time.

A request with an odd seed gets a turn with a tool call, and a request with an even seed gets an answer. Consecutive
turns of a rollout have seeds of alternating parity, so half of the rollouts call Python once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

from rstar2.engines.oracle import byte_codec
from rstar2.loop.tools.python_code_with_standard_io import NAME as TOOL_NAME

VARIANTS = 64
MAX_LEN = 1 << 17


def _answers(mean_tokens: int) -> dict[bool, list[tuple[int, bytes]]]:
    """Generate completions of different lengths.

    Returns two lists of (tokens, HTTP response) pairs: tool calls for the key True, and answers for the key False.
    """
    codec, rng = byte_codec(), random.Random(0)
    call = json.dumps({"name": TOOL_NAME, "arguments": {"code": "print(7)", "input": ""}})
    ends = {True: f"</reason>\n<tool_call>{call}</tool_call>", False: "</reason><answer>\\boxed{7}</answer>"}
    responses: dict[bool, list[tuple[int, bytes]]] = {True: [], False: []}
    for is_call, end in ends.items():
        for _ in range(VARIANTS):
            length = max(len(end) + 2, int(rng.expovariate(1 / mean_tokens)))
            text = "and on we go " * (length // 14 + 1)
            ids = codec.tokenizer.encode(text[: length - len(end) - 1] + end, add_special_tokens=False)
            ids.append(codec.end_id)
            logprobs = [round(-rng.random(), 6) for _ in ids]
            choice = {
                "index": 0,
                "text": "",
                "token_ids": ids,
                "logprobs": {"token_logprobs": logprobs},
                "finish_reason": "stop",
            }
            responses[is_call].append((len(ids), _http(json.dumps({"choices": [choice]}).encode())))
    return responses


def _http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


MODELS = _http(json.dumps({"data": [{"id": "paced", "max_model_len": MAX_LEN, "root": "paced"}]}).encode())


class PacedServer:
    """Answers each request at `pace` tokens per second."""

    def __init__(self, pace: float, mean_tokens: int) -> None:
        self._pace = pace
        self._answers = _answers(mean_tokens)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
                body = await reader.readexactly(int(length)) if length else b""
                if head.startswith(b"get"):
                    writer.write(MODELS)
                else:
                    seed = int(json.loads(body)["seed"])
                    tokens, answer = self._answers[seed % 2 == 1][seed // 2 % VARIANTS]
                    await asyncio.sleep(tokens / self._pace)
                    writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace", type=float, default=40.0, help="tokens per second of one request")
    parser.add_argument("--mean-tokens", type=int, default=400, help="mean tokens of a turn")
    options = parser.parse_args()
    paced = PacedServer(options.pace, options.mean_tokens)
    server = await asyncio.start_server(paced.serve, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
