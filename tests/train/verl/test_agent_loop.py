"""Tests of the agent loop in VERL: failures of its engine, the judge and the grader, and the fields of its output."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs
from support.tools import SharedTools
from support.train.training_traces import training_traces

from rstar2.errors import UserError
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import WrongToken
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.agent import Limits, RolloutError
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import CallStatus, ToolCall, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.reward import Reward

if TYPE_CHECKING:
    from rstar2.train.verl.agent_loop import RStarAgentLoop

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.


class BrokenServer:
    async def generate(self, **request: Any) -> None:
        raise RuntimeError("the actor died")


def loop(codec: ChatCodec, traces: Path, trace_share: float) -> RStarAgentLoop:
    """An agent loop without VERL's set-up, which would need a running trainer."""
    from rstar2.train.verl.agent_loop import RStarAgentLoop

    rstar_loop: RStarAgentLoop = RStarAgentLoop.__new__(RStarAgentLoop)
    rstar_loop.server_manager = BrokenServer()
    rstar_loop.rollout_config = SimpleNamespace(name="vllm")
    rstar_loop._codec, rstar_loop._limits, rstar_loop._tools = codec, Limits(), SharedTools()
    rstar_loop._traces, rstar_loop._trace_share, rstar_loop._seed, rstar_loop._may_end_unfinished = (
        traces,
        trace_share,
        1,
        False,
    )
    rstar_loop._recover = False
    return rstar_loop


ROW = {
    "raw_prompt": [{"role": "user", "content": "2 + 2?"}],
    "extra_info": {"id": "sum", "problem": "2 + 2?"},
    "reward_model": {"ground_truth": "4"},
    "uid": "u1",
    "session_id": 3,
    "global_steps": 12,
}


@pytest.mark.parametrize(("share", "kept_per_step"), [(0.01, 1), (0.0, 0)])
async def test_it_is_kept_unless_no_traces_are_and_the_group_fails(
    codec: ChatCodec, tmp_path: Path, share: float, kept_per_step: int
) -> None:
    with pytest.raises(RolloutError, match="the actor died"):
        await loop(codec, tmp_path / "traces", share).run({"temperature": 1.0}, **ROW)
    traces = list(training_traces(tmp_path))
    rows = [(trace.problem_id, trace.sample, trace.step, trace.gold, trace.finish) for trace in traces]
    assert rows == [("sum", 3, 12, "4", "error")] * kept_per_step


async def test_a_rollout_that_could_not_be_graded_whatever_its_answer_has_no_verdict(
    codec: ChatCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.eval.grader.grading import PREVENTED, Verdict
    from rstar2.train.verl import agent_loop

    for rule in PREVENTED:

        class Grader:
            async def agrade(self, gold: str, text: str, rule: str = rule) -> Verdict:
                return Verdict("unparsed", None, rule)

        monkeypatch.setattr(agent_loop, "_grader", Grader)
        rstar_loop: Any = loop(codec, tmp_path / "traces", 0.01)
        rstar_loop.server_manager, rstar_loop._reward = DyingServer(codec, dead=True), Reward("paper")
        with pytest.raises(agent_loop.GraderFault, match=rule) as excinfo:
            await rstar_loop.run({"temperature": 1.0}, **ROW)
        assert excinfo.value.trace.tokens > 0
    assert len(list(training_traces(tmp_path))) == len(PREVENTED)


@pytest.mark.allows_grader_defects
async def test_an_answer_that_the_grader_could_not_decide_earns_nothing_and_is_counted_apart(
    codec: ChatCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rstar2.eval.grader.grading import INTERNAL_ERROR, WORKER_ENDED, Verdict
    from rstar2.train.verl import agent_loop
    from rstar2.train.verl.rollout_fields import rollout_of, trace_of

    verdicts = {
        "deadline": Verdict("timeout", None, "deadline"),
        "work": Verdict("unparsed", "x!", "not verified: too much work"),
        "fault": Verdict("unparsed", None, INTERNAL_ERROR),
    }
    for why, verdict in {**verdicts, "fault ": Verdict("unparsed", None, WORKER_ENDED)}.items():

        class Grader:
            async def agrade(self, gold: str, text: str, verdict: Verdict = verdict) -> Verdict:
                return verdict

        monkeypatch.setattr(agent_loop, "_grader", Grader)
        # This share draws no trace. These traces are saved because of their status.
        rstar_loop: Any = loop(codec, tmp_path / "traces", 1e-12)
        rstar_loop.server_manager, rstar_loop._reward = DyingServer(codec, dead=True), Reward("paper")
        output = await rstar_loop.run({"temperature": 1.0}, **ROW)
        rollout, trace = rollout_of(output.extra_fields), trace_of(output.extra_fields)
        assert (output.reward_score, rollout.correct, rollout.missed) == (0.0, False, why.strip())
        assert rollout.undecided
        assert trace is not None
        assert trace.rule == verdict.rule
        assert f"could not decide the answer of problem sum, sample 3: {verdict.rule}" in caplog.text


async def test_of_a_servers_own_error_the_cause_is_told_and_not_the_way_to_it(
    codec: ChatCodec, tmp_path: Path
) -> None:
    from ray.exceptions import RayTaskError

    class FailingServer:
        async def generate(self, **request: Any) -> None:
            cause = ValueError("no KV block is free")
            message = (
                "ray::vLLMHttpServer.generate() (pid=7)\n  File a, line 1\nValueError: no KV block is free"
            )
            raise RayTaskError("generate", message, cause).as_instanceof_cause()

    rstar_loop: Any = loop(codec, tmp_path / "traces", 0.0)
    rstar_loop.server_manager = FailingServer()
    with pytest.raises(RolloutError) as excinfo:
        await rstar_loop.run({"temperature": 1.0}, **ROW)
    assert excinfo.value.message == "VERL's rollout server failed: ValueError: no KV block is free"


async def test_what_fails_because_training_ends_is_kept_nowhere(
    codec: ChatCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.train.verl import agent_loop

    async def ends_after(seconds: float) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(agent_loop, "asyncio", SimpleNamespace(sleep=ends_after))
    unfinished = loop(codec, tmp_path / "traces", 1.0)
    unfinished._may_end_unfinished = True
    with pytest.raises(asyncio.CancelledError):
        await unfinished.run({"temperature": 1.0}, **ROW)
    assert list(training_traces(tmp_path)) == []


async def test_a_rollout_waits_for_a_judge_that_is_away_only_once() -> None:
    from rstar2.train.verl.agent_loop import _StopAfterLostCall

    waited = []

    class Away:
        async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
            waited.append(arguments)
            status = "ok" if len(waited) == 1 else "lost"
            return ToolCall(name=name, arguments=arguments, status=status, output="-", wall_s=600.0)

    tools = _StopAfterLostCall(Away())
    calls = [await tools.run("python", {"code": str(number)}) for number in range(5)]
    assert [call.status for call in calls] == ["ok", "lost", "lost", "lost", "lost"]
    assert [call.arguments for call in calls] == [{"code": str(number)} for number in range(5)]
    assert waited == [{"code": "0"}, {"code": "1"}]
    assert sum(call.wall_s for call in calls) == 1200.0


FINISHED = Trace(
    problem_id="sum",
    prompt_ids=[1],
    response_ids=[2],
    response_mask=[1],
    turns=[Turn(text="4", start=0, end=1)],
    finish="answer",
    verdict="correct",
    reward=1.0,
)


async def test_all_rollouts_of_a_worker_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from rstar2.train.verl import agent_loop_manager
    from rstar2.train.verl.rollout_fields import to_extra_fields

    loops = []

    class Loop:
        async def run(self, sampling_params: dict[str, Any], **row: Any) -> SimpleNamespace:
            text = f"{row['problem']} at {sampling_params['temperature']}"
            return SimpleNamespace(text=text, extra_fields=to_extra_fields(FINISHED, with_trace=False))

    def instantiate(config: dict[str, str], **options: Any) -> Loop:
        loops.append(config["_target_"])
        return Loop()

    monkeypatch.setattr(agent_loop_manager, "instantiate", instantiate)
    monkeypatch.setitem(agent_loop_manager.agent_loop._agent_loop_registry, "ours", {"_target_": "a.Loop"})
    worker: Any = agent_loop_manager.AgentLoopWorker.__new__(agent_loop_manager.AgentLoopWorker)
    worker._loops, outputs = {}, []
    worker.config = SimpleNamespace(data={})
    for name in ("llm_client", "tokenizer", "processor", "hf_model_type", "dataset_cls", "tools"):
        setattr(worker, name, None)

    async def postprocess(output: SimpleNamespace, validate: bool, **row: Any) -> None:
        outputs.append((output.text, validate, row))

    worker._agent_loop_postprocess = postprocess
    for problem in ("sum", "product"):
        row = {"agent_name": "ours", "trace": False, "problem": problem}
        await worker._run_agent_loop({"temperature": 1.0}, {"validate": True}, **row)
    assert loops == ["a.Loop"]
    assert outputs == [
        ("sum at 1.0", True, {"problem": "sum"}),
        ("product at 1.0", True, {"problem": "product"}),
    ]


class Router:
    """Stands in for our router, and records its calls. If `dead`, it reports that the failed engine is dead."""

    def __init__(self, dead: bool) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.end_session = SimpleNamespace(remote=lambda *args: self.calls.append(("end", *args)))
        self.engine_failed = SimpleNamespace(remote=self._failed)
        self._dead = dead

    async def _failed(self, request_id: str) -> bool:
        self.calls.append(("failed", request_id))
        return self._dead


class DyingServer:
    """A client whose first engine dies during a turn. Later requests succeed."""

    def __init__(self, codec: ChatCodec, dead: bool) -> None:
        self._load_balancer = Router(dead)
        self._codec = codec
        self.asked: list[str] = []

    async def generate(self, request_id: str, **request: Any) -> SimpleNamespace:
        from ray.exceptions import ActorDiedError

        self.asked.append(request_id)
        if len(self.asked) == 1:
            raise ActorDiedError
        completion = self._codec.tokenizer.encode("</reason><answer>\\boxed{4}</answer>")
        return SimpleNamespace(token_ids=[*completion, self._codec.end_id], log_probs=None, extra_fields={})


async def test_a_turn_whose_engine_died_is_asked_of_another_and_the_router_is_told_of_the_end(
    codec: ChatCodec, tmp_path: Path
) -> None:
    rstar_loop: Any = loop(codec, tmp_path / "traces", 0.0)
    rstar_loop.server_manager, rstar_loop._reward = DyingServer(codec, dead=True), Reward("paper")
    output = await rstar_loop.run({"temperature": 1.0}, **ROW)
    (request,) = set(rstar_loop.server_manager.asked)
    assert request.startswith("u1/")
    assert len(rstar_loop.server_manager.asked) == 2
    tokens = len(output.prompt_ids) + len(output.response_ids)
    assert rstar_loop.server_manager._load_balancer.calls == [("failed", request), ("end", request, tokens)]


async def test_a_turn_fails_where_the_engine_still_lives_and_the_session_ends_all_the_same(
    codec: ChatCodec, tmp_path: Path
) -> None:
    rstar_loop: Any = loop(codec, tmp_path / "traces", 0.0)
    rstar_loop.server_manager = DyingServer(codec, dead=False)
    with pytest.raises(RolloutError):
        await rstar_loop.run({"temperature": 1.0}, **ROW)
    (request,) = rstar_loop.server_manager.asked
    assert rstar_loop.server_manager._load_balancer.calls == [("failed", request), ("end", request, None)]


class CallingServer:
    """An engine that writes a turn with a call."""

    def __init__(self, codec: ChatCodec) -> None:
        call = '{"name": "python_code_with_standard_io", "arguments": {"code": "print(1)"}}'
        text = f"So</reason><tool_call>{call}</tool_call>"
        self._ids = [*codec.tokenizer.encode(text), codec.end_id]

    async def generate(self, **request: Any) -> SimpleNamespace:
        return SimpleNamespace(
            token_ids=self._ids, log_probs=[-1.0] * len(self._ids), extra_fields={"global_steps": 1}
        )


async def test_a_judge_that_refuses_the_token_ends_training_and_loses_no_call(
    codec: ChatCodec, token_judge: JudgeHandle, tmp_path: Path
) -> None:
    rolling = loop(codec, tmp_path / "traces", 1.0)
    rolling.server_manager = CallingServer(codec)
    async with JudgeClient(token_judge.url, "another", wait_s=1e6) as client:
        rolling._tools = Toolbox(client, codec.format)
        with pytest.raises(WrongToken):
            await rolling.run({"temperature": 1.0}, **ROW)
    error = read_final_error(tmp_path / FINAL_ERROR_FILE)
    assert isinstance(error, UserError)
    assert error.message == f"the judge at {token_judge.url} refused the token"


class ScriptedServer:
    """An engine that writes these turns one after the other."""

    def __init__(self, codec: ChatCodec, *turns: str) -> None:
        self._turns = [[*codec.tokenizer.encode(turn), codec.end_id] for turn in turns]
        self.asked: list[list[int]] = []

    async def generate(self, prompt_ids: list[int], **request: Any) -> SimpleNamespace:
        self.asked.append(prompt_ids)
        completion = self._turns[len(self.asked) - 1]
        return SimpleNamespace(
            token_ids=completion, log_probs=[-1.0] * len(completion), extra_fields={"min_global_steps": 11}
        )


class FailingOnce(SharedTools):
    """Tools whose first call fails."""

    def __init__(self, keep_state: bool) -> None:
        self.keep_state = keep_state
        self.ran: list[str] = []

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        self.ran.append(arguments["code"])
        status: CallStatus = "error" if len(self.ran) == 1 else "ok"
        return ToolCall(name=name, arguments=arguments, status=status, output="NameError")


def call_of(code: str) -> str:
    body = json.dumps({"name": "python_code_with_standard_io", "arguments": {"code": code}})
    return f"So</reason><tool_call>{body}</tool_call>"


@pytest.mark.parametrize("state", [False, True], ids=["no state", "a tool with state"])
async def test_a_recovery_goes_to_verl_as_a_rollout_of_the_problem_that_only_wrote_what_followed(
    codec: ChatCodec, tmp_path: Path, state: bool
) -> None:
    from rstar2.train.recover import Recovery, draw_beginnings
    from rstar2.train.verl.rollout_fields import (
        recovery_in,
        rollout_of,
        take_recoverable,
        trace_of,
        written_by,
    )

    answer = "So</reason><answer>\\boxed{4}</answer>"
    rstar_loop: Any = loop(codec, tmp_path / "traces", 1.0)
    rstar_loop._recover, rstar_loop._reward, rstar_loop._tools = True, Reward("paper"), FailingOnce(state)
    rstar_loop.server_manager = ScriptedServer(codec, call_of("x"), answer)
    sampling = {"temperature": 1.0, "logprobs": True}
    first = await rstar_loop.run(sampling, **ROW)
    trace, replay = take_recoverable(first.extra_fields) or (None, None)
    assert trace is not None
    assert replay is state
    [beginning] = draw_beginnings([trace], 1, seed=1)

    rstar_loop.server_manager = server = ScriptedServer(codec, call_of("y"), answer)
    row = {**ROW, "uid": "u1_after0", "session_id": 1}
    output = await rstar_loop.recover(sampling, beginning, replay, **row)
    assert rstar_loop._tools.ran == ["x", *(["x"] if state else []), "y"]
    start_of_own = trace.turns[1].start
    assert output.prompt_ids == first.prompt_ids == server.asked[0][: len(first.prompt_ids)]
    assert server.asked[0] == first.prompt_ids + first.response_ids[:start_of_own]
    assert output.response_ids[:start_of_own] == first.response_ids[:start_of_own]
    assert output.response_mask[:start_of_own] == [0] * start_of_own
    assert output.response_logprobs[:start_of_own] == [0.0] * start_of_own
    own_positions = [i for i, mask in enumerate(output.response_mask) if mask]
    assert min(own_positions) == start_of_own
    assert {output.response_logprobs[i] for i in own_positions} == {-1.0}
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    assert output.reward_score == 1.0
    assert recovery_in(output.extra_fields) == Recovery(start_of_own, repaired=True)
    assert written_by(output.extra_fields) == {11: len(own_positions)}
    assert rollout_of(output.extra_fields).sample == 1
    assert trace_of(output.extra_fields) is None
    assert take_recoverable(output.extra_fields) is None, "no other rollout begins in the middle of this one"
