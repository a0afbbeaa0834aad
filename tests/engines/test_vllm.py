"""The vLLM engine over real HTTP, with a stand-in that speaks vLLM's wire format.

vLLM pins its own torch and transformers, so it cannot run in this test environment. These tests check the client.
tests/engines/test_real_vllm.py checks client and server if vLLM is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from support.clock import Clock, policies_on
from support.servers.vllm_standin import StandIn, logprob, serving

from rstar2.engines.pool import RetryingEngine
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import UserError
from rstar2.loop.engine import EngineError, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.processes import free_port
from rstar2.retry import RetryPolicy, ServiceGone

END = 7
PROMPT = [1, 2, 3]
GREEDY = Sampling(temperature=0.0, max_tokens=64)


def _echo_then_end(prompt: list[int]) -> list[int]:
    return [*(token + 100 for token in prompt), END, 999]


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with serving(StandIn(_echo_then_end)) as server:
        yield server


def _engine(standin: StandIn) -> VLLMEngine:
    return VLLMEngine(standin.url, stop_token_ids=[END])


async def test_token_ids_in_token_ids_out_with_the_end_of_turn_kept(standin: StandIn) -> None:
    engine = _engine(standin)
    generation = await engine.generate(PROMPT, GREEDY)
    assert standin.requests[0]["prompt"] == PROMPT
    assert generation.token_ids == [101, 102, 103, END]
    assert generation.finish == "stop"
    assert generation.logprobs == [logprob(token) for token in generation.token_ids]
    assert engine.name == f"scripted at {standin.url}"
    await engine.aclose()


async def test_a_turn_cut_by_its_budget_says_length(standin: StandIn) -> None:
    generation = await _engine(standin).generate(PROMPT, Sampling(max_tokens=2))
    assert (generation.token_ids, generation.finish) == ([101, 102], "length")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_cuts_turns_before_their_budget_is_an_error(
    standin: StandIn, streamed: bool
) -> None:
    standin.max_new_tokens = 2
    with pytest.raises(EngineError, match="ended a turn after 2 tokens, although the limit is 64") as caught:
        await _engine(standin).generate(PROMPT, GREEDY, (lambda ids: None) if streamed else None)
    assert "max_new_tokens" in caught.value.hint


async def test_every_sampling_value_is_sent_so_that_no_server_default_slips_in(standin: StandIn) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=0, max_tokens=9, seed=41)
    await _engine(standin).generate(PROMPT, sampling)
    request = standin.requests[0]
    assert request["temperature"] == 0.7
    assert request["top_p"] == 0.9
    assert request["top_k"] == 0
    assert request["max_tokens"] == 9
    assert request["seed"] == 41
    assert (request["min_p"], request["repetition_penalty"]) == (0.0, 1.0)
    assert request["stop_token_ids"] == [END]
    assert request["return_token_ids"] is True


async def test_without_a_seed_none_is_sent(standin: StandIn) -> None:
    await _engine(standin).generate(PROMPT, GREEDY)
    assert "seed" not in standin.requests[0]


async def test_streaming_shows_every_token_once_and_returns_the_same_turn(standin: StandIn) -> None:
    engine = _engine(standin)
    pieces: list[list[int]] = []
    streamed = await engine.generate(PROMPT, GREEDY, pieces.append)
    assert len(pieces) == 2
    assert [token for piece in pieces for token in piece] == streamed.token_ids
    assert streamed == await engine.generate(PROMPT, GREEDY)


async def test_the_budget_is_cut_to_what_the_servers_context_still_holds() -> None:
    with serving(StandIn(_echo_then_end, max_model_len=5)) as standin:
        engine = _engine(standin)
        generation = await engine.generate(PROMPT, GREEDY)
        assert (len(generation.token_ids), generation.finish) == (2, "length")
        assert standin.requests[0]["max_tokens"] == 2
        full = await engine.generate([1, 2, 3, 4, 5], GREEDY)
        assert (full.token_ids, full.finish) == ([], "length")
        assert len(standin.requests) == 1


def _retrying(standin: StandIn, wait_s: float) -> RetryingEngine:
    """Returns an engine whose retries use a simulated clock, so that a slow machine does not matter."""
    return RetryingEngine(_engine(standin), policies_on(Clock())(wait_s).service("engine"))


async def test_a_busy_server_is_requested_again(standin: StandIn) -> None:
    standin.busy_answers = 2
    generation = await _retrying(standin, wait_s=60).generate(PROMPT, GREEDY)
    assert generation.finish == "stop"
    assert len(standin.requests) == 3


async def test_a_busy_server_is_one_attempt_and_one_error(standin: StandIn) -> None:
    standin.busy_answers = 1000
    with pytest.raises(EngineUnavailable, match=f"{standin.url}.*warming up"):
        await _engine(standin).generate(PROMPT, GREEDY)
    assert len(standin.requests) == 1


async def test_a_server_that_is_not_there_is_one_error_with_its_address_in_plain_words() -> None:
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{free_port()}"
        with pytest.raises(EngineUnavailable) as failed:
            await VLLMEngine(url).generate(PROMPT, GREEDY)
        assert failed.value.message == f"nothing answers at {url}: connection refused"


async def test_a_server_that_goes_away_between_turns_is_one_error_with_its_address() -> None:
    with serving(StandIn(_echo_then_end)) as standin:
        engine = _engine(standin)
        await engine.generate(PROMPT, GREEDY)
    with pytest.raises(EngineUnavailable, match=standin.url):
        await engine.generate(PROMPT, GREEDY)


async def test_a_turn_that_takes_longer_than_allowed_is_given_up(standin: StandIn) -> None:
    standin.complete_until = 0
    attempts: list[list[int]] = []

    class CountingEngine(VLLMEngine):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
        ) -> Generation:
            attempts.append(list(prompt_ids))
            return await super().generate(prompt_ids, sampling, on_tokens)

    engine = RetryingEngine(
        CountingEngine(standin.url), RetryPolicy(0.0).service("engine"), turn_timeout_s=0.5
    )
    with pytest.raises(ServiceGone, match=r"did not finish a turn within 0\.5 seconds"):
        await engine.generate(PROMPT, GREEDY)
    assert attempts == [PROMPT]


async def test_a_stream_cut_before_its_first_token_is_requested_again(standin: StandIn) -> None:
    standin.cut_after = 0
    batches: list[list[int]] = []
    with pytest.raises(ServiceGone, match=f"the connection to {standin.url} broke"):
        await _retrying(standin, wait_s=0.5).generate(PROMPT, GREEDY, batches.append)
    assert batches == []
    assert len(standin.requests) > 1


async def test_a_stream_cut_in_the_middle_is_never_shown_twice(standin: StandIn) -> None:
    standin.cut_after = 1
    batches: list[list[int]] = []
    with pytest.raises(EngineError, match="in the middle of a turn"):
        await _retrying(standin, wait_s=60).generate(PROMPT, GREEDY, batches.append)
    assert batches == [[101, 102, 103]]
    assert len(standin.requests) == 1


async def test_a_refused_request_is_not_tried_again_and_says_why(standin: StandIn) -> None:
    engine = _engine(standin)
    await engine.generate(PROMPT, GREEDY)
    standin.names = ("another",)
    with pytest.raises(EngineError, match="does not exist"):
        await engine.generate(PROMPT, GREEDY)
    assert len(standin.requests) == 2


async def test_many_turns_are_in_flight_at_once(standin: StandIn) -> None:
    standin.together = 50
    engine = _engine(standin)
    generation = await asyncio.gather(*(engine.generate([n], GREEDY) for n in range(50)))
    assert [turn.token_ids for turn in generation] == [[n + 100, END] for n in range(50)]


async def test_several_served_models_are_never_picked_from_silently() -> None:
    with serving(StandIn(_echo_then_end, names=("one", "two"))) as standin:
        with pytest.raises(EngineError, match="one, two"):
            await VLLMEngine(standin.url).generate(PROMPT, GREEDY)
        with pytest.raises(EngineError, match="does not serve three"):
            await VLLMEngine(standin.url, "three").generate(PROMPT, GREEDY)
        await VLLMEngine(standin.url, "two").generate(PROMPT, Sampling(max_tokens=2))
        assert [body["model"] for body in standin.requests] == ["two"]


async def test_of_many_models_a_few_are_named_and_the_option_that_names_one() -> None:
    with serving(StandIn(_echo_then_end, names=tuple("abcdefgh"))) as standin:
        with pytest.raises(EngineError, match="serves 8 models: a, b, c, d, e and 3 more\n") as ambiguous:
            await VLLMEngine(standin.url).generate(PROMPT, GREEDY)
        assert ambiguous.value.hint == "Choose one of them with --model-name."
        with pytest.raises(EngineError, match="does not serve x") as absent:
            await VLLMEngine(standin.url, "x").generate(PROMPT, GREEDY)
        assert absent.value.hint == "It serves: a, b, c, d, e and 3 more."


async def test_a_server_without_token_ids_is_refused(standin: StandIn) -> None:
    standin.token_ids = False
    with pytest.raises(EngineError, match="no token ids"):
        await _engine(standin).generate(PROMPT, GREEDY)


async def test_a_url_with_v1_is_the_same_server_and_a_word_is_none(standin: StandIn) -> None:
    generation = await VLLMEngine(f"{standin.url}/v1/", stop_token_ids=[END]).generate(PROMPT, GREEDY)
    assert generation.finish == "stop"
    with pytest.raises(UserError, match="not a server's URL: localhost"):
        VLLMEngine("localhost:8000")


async def test_a_server_that_asks_for_a_key_is_sent_it_and_a_refusal_says_how(standin: StandIn) -> None:
    standin.key = "secret"
    engine = VLLMEngine(standin.url, stop_token_ids=[END], key="secret")
    assert (await engine.generate(PROMPT, GREEDY)).finish == "stop"
    with pytest.raises(EngineError, match="HTTP 401: Unauthorized") as error:
        await _engine(standin).generate(PROMPT, GREEDY)
    assert "--api-key" in error.value.hint
