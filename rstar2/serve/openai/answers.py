"""The objects and server-sent events that clients get."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from rstar2.errors import RStarError
from rstar2.serve.openai.errors import ApiError, described

log = logging.getLogger(__name__)


def head(kind: str, model: str) -> dict[str, Any]:
    """What every object of one answer begins with; `kind` is OpenAI's name: `chat.completion.chunk`."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Counts of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def model_list(name: str, root: str, max_model_len: int | None) -> dict[str, Any]:
    """The answer of /v1/models of a server with one model, with vLLM's fields; None for a context that is not known."""
    card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "rstar2"}
    return {"object": "list", "data": [{**card, "root": root, "max_model_len": max_model_len}]}


def streamed(events: AsyncGenerator[dict[str, Any], None]) -> StreamingResponse:
    """Objects as server-sent events; an error on the way is one of them. It ends early when the client leaves."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        except Exception as error:
            if not isinstance(error, RStarError | ApiError):
                log.exception("a stream failed")
            yield f"data: {json.dumps(described(error)[1])}\n\n"
        finally:
            await events.aclose()
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
