"""A chat waits for a server that went away. The time limit starts when the chat notices this."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rstar2.chat.recovery import PAUSES, ContinuingEngine
from rstar2.loop.engine import EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.retry import RetryPolicy

END = 9


class Breaks:
    """An engine that writes two tokens, is silent for a minute of simulated time, and then breaks the connection.

    Args:
        for_good: Whether all later connections break too.
    """

    name = "breaks"

    def __init__(self, for_good: bool) -> None:
        self.for_good = for_good
        self.now = 0.0
        self.prompts: list[list[int]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.prompts.append(list(prompt_ids))
        if len(self.prompts) == 1:
            assert on_tokens is not None
            on_tokens([1, 2])
        elif not self.for_good:
            return Generation([3, END], None, "stop")
        self.now += 60.0
        raise EngineUnavailable("it broke")

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("for_good", [False, True])
async def test_the_wait_begins_when_a_server_is_seen_to_be_away_and_not_with_its_last_token(
    for_good: bool,
) -> None:
    server, notices = Breaks(for_good), list[str]()
    retries = RetryPolicy(30.0, PAUSES, clock=lambda: server.now)
    engine = ContinuingEngine(server, [END], notices.append, retries)
    if for_good:
        with pytest.raises(EngineUnavailable, match="the engine has not answered for 30 seconds: it broke"):
            await engine.generate([7], Sampling(max_tokens=10), lambda _: None)
    else:
        generated = await engine.generate([7], Sampling(max_tokens=10), lambda _: None)
        assert generated.token_ids == [1, 2, 3, END]
    # The second connection breaks too. Then the wait of 30 seconds begins. The third connection takes longer than that.
    assert server.prompts == [[7], *[[7, 1, 2]] * (2 if for_good else 1)]
    assert notices == ["it broke; the answer continues when it is back"]
