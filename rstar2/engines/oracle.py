"""An engine that knows the answers, to test benchmark, judge, grader and report without a model.

The score of this engine is known in advance. A different score is therefore an error of the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling
from rstar2.loop.formats.format import DEFAULT_FORMAT, Format
from rstar2.loop.tools.python_code_with_standard_io import NAME as PYTHON
from rstar2.loop.turns import tags
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.template import END_OF_TURN

WRONG_ANSWER = "-987654321"
WRONG_EVERY = 10


class OracleEngine:
    """Answers each problem with its gold answer, which it looks up by the problem's text.

    Every tenth answer is wrong on purpose. The first turn prints the answer with Python, and the second turn states the
    answer. `generate` raises EngineError if the prompt begins with none of the problems.
    """

    name = "oracle"

    def __init__(self, golds: Mapping[str, str], codec: ChatCodec) -> None:
        self._codec = codec
        self._answers: dict[tuple[int, ...], str] = {}
        for number, (problem, gold) in enumerate(golds.items()):
            prompt = tuple(codec.prompt(codec.format.messages(problem)))
            self._answers[prompt] = gold if number % WRONG_EVERY else WRONG_ANSWER
        self._lengths = sorted({len(prompt) for prompt in self._answers}, reverse=True)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        opening, answer = self._recognise(tuple(prompt_ids))
        first = opening == len(prompt_ids)
        text = _call(answer) if first else _answer(answer)
        token_ids = [*self._codec.tokenizer.encode(text, add_special_tokens=False), self._codec.end_id]
        written = token_ids[: sampling.max_tokens]
        if on_tokens is not None:
            on_tokens(written)
        return Generation(
            written, [0.0] * len(written), "stop" if len(written) == len(token_ids) else "length"
        )

    async def aclose(self) -> None:
        return

    def _recognise(self, prompt: tuple[int, ...]) -> tuple[int, str]:
        for length in self._lengths:
            if length <= len(prompt) and (answer := self._answers.get(prompt[:length])) is not None:
                return length, answer
        raise EngineError("the oracle does not know this problem")


def _call(answer: str) -> str:
    arguments = {"code": f"print({answer!r})", "input": ""}
    return f"Let me print it.{tags.REASON_END}\n{tags.call_text(PYTHON, arguments)}"


def _answer(answer: str) -> str:
    return f"The tool agrees.{tags.REASON_END}\n{tags.answer_text(answer)}"


def byte_codec(fmt: Format | None = None, source: str = DEFAULT_FORMAT) -> ChatCodec:
    """Returns a codec that needs no model. The codec has one token per byte, and the special tokens of rstar2's
    template.

    The default format is rstar2's own. Raises UserError if the format does not fit this tokenizer, see `codec_for`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END_OF_TURN,
        additional_special_tokens=["<|im_start|>"],
    )
    return codec_for(tokenizer, fmt, source)
