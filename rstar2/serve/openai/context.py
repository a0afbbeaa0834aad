"""The model's context: what is too long for it is refused, long texts before they are turned into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rstar2.serve.openai.errors import ApiError


@dataclass(frozen=True)
class Context:
    """How much prompt and answer may have together."""

    tokens: int
    longest_token: int
    """Characters of the longest token that the tokenizer has."""

    @classmethod
    def of(cls, tokens: int, tokenizer: Any) -> Context:
        return cls(tokens, max(map(len, tokenizer.get_vocab()), default=1))

    def check_text(self, characters: int) -> None:
        """An ApiError for a text that cannot fit, however long its tokens are; to make them would take long."""
        if characters > self.tokens * self.longest_token:
            raise self._exceeded(f"the prompt has {characters:,} characters, which are more.")

    def check(self, prompt: int, answer: int = 1) -> None:
        """An ApiError where so many tokens of prompt and answer exceed it."""
        if prompt + answer > self.tokens:
            raise self._exceeded(f"the prompt has {prompt} and {answer} were asked for.")

    def _exceeded(self, why: str) -> ApiError:
        message = f"This model's maximum context length is {self.tokens} tokens; {why}"
        return ApiError(message, "max_tokens", code="context_length_exceeded")
