"""Our agent loop for VERL: it runs a rollout with the same loop, judge and grader as in chat and evaluation."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from rstar2.errors import Failure, RStarError
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.outcomes import UNDECIDED, missed
from rstar2.eval.settings import sample_seed
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import AccessRefused
from rstar2.loop.agent import Limits, RolloutError, ToolRunner, continue_rollout
from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling
from rstar2.loop.formats.format import read_format
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import ToolCall, Trace
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.records.final_error import write_final_error
from rstar2.train.records.kept_traces import may_be_kept, write_failed
from rstar2.train.recover import Beginning, Recovery, may_recover, recovery_of
from rstar2.train.reward import Penalty, PenaltySettings, Reward, reading_rule, text_to_grade
from rstar2.train.verl.cpu.platform import CPU_ROLLOUT
from rstar2.train.verl.engines.router import GROUP_ENDS
from rstar2.train.verl.rollout_fields import recoverable_field, to_extra_fields


@functools.cache
def _judge(url: str, token: str | None, wait_s: float) -> JudgeClient:
    """Returns the judge client, which all rollouts of this process share. The client batches concurrent calls into one
    request."""
    return JudgeClient(url, token, wait_s)


@functools.cache
def _grader() -> GraderPool:
    """Returns the pool of grader processes, which all rollouts of this process share. The pool stops when the process
    exits."""
    pool = GraderPool(workers=1)
    pool.__enter__()
    return pool


END_S = 5.0
"""Maximum number of seconds that it takes to stop all processes of the trainer at the end of training."""
_ENGINE_ATTEMPTS = 3
"""Maximum number of attempts to generate one turn. If an engine dies, the next attempt uses another engine."""
log = logging.getLogger(__name__)


class GraderFault(Failure):
    """The grader could not grade a finished rollout, because of an error in the grader itself.

    Args:
        why: the text of the error.
        trace: the rollout.
    """

    def __init__(self, why: str, trace: Trace) -> None:
        super().__init__(f"the grader failed: {why}")
        self.trace = trace


class _ServerEngine:
    """An `Engine` that generates one rollout through VERL's client. The engine records which step's weights generated
    each turn.

    The id of the engine's requests begins with the rollout's group (see `rstar2.train.verl.engines.router`).
    """

    name = "verl"

    def __init__(self, client: Any, codec: ChatCodec, params: dict[str, Any], group: str) -> None:
        self._client = client
        self._router = getattr(client, "_load_balancer", None)
        self._params = params
        self._stop_ids = codec.stop_ids
        self._request_id = f"{group}{GROUP_ENDS}{uuid.uuid4().hex}"
        self.versions: dict[str, Any] = {}
        self.written_by: Counter[int] = Counter()
        """Dict from a step to the number of tokens in the turns that began with the weights of this step."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        params = {
            **self._params,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": self._stop_ids,
            **({} if sampling.seed is None else {"seed": sampling.seed}),
        }
        try:
            output = await self._generate(list(prompt_ids), params)
        except Exception as error:  # VERL's client can raise any error of its server
            raise EngineError(f"VERL's rollout server failed: {_server_message(error)}") from error
        fields = output.extra_fields
        self.versions.setdefault("min_global_steps", fields.get("min_global_steps"))
        self.versions["max_global_steps"] = fields.get("max_global_steps")
        token_ids = list(output.token_ids)
        if fields.get("min_global_steps") is not None:
            self.written_by[fields["min_global_steps"]] += len(token_ids)
        full = len(token_ids) >= sampling.max_tokens and not set(token_ids[-1:]) & set(self._stop_ids)
        return Generation(token_ids, output.log_probs, "length" if full or not token_ids else "stop")

    async def _generate(self, prompt_ids: list[int], params: dict[str, Any]) -> Any:
        """Returns VERL's response to a request. If the rollout's engine died, another engine generates the response."""
        for _ in range(_ENGINE_ATTEMPTS - 1):
            try:
                return await self._client.generate(
                    request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params
                )
            except RayActorError:
                failed = getattr(self._router, "engine_failed", None)
                if failed is None or not await failed.remote(self._request_id):
                    raise
        return await self._client.generate(
            request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params
        )

    def ended(self, tokens: int | None) -> None:
        """Tells the router that the rollout has ended, if VERL uses our router.

        Args:
            tokens: the rollout's number of tokens, including the prompt, or None if the rollout failed.
        """
        end = getattr(self._router, "end_session", None)
        if end is not None:
            end.remote(self._request_id, tokens)

    async def aclose(self) -> None:
        return None


class _StopAfterLostCall:
    """The tools that one rollout calls. After the judge has lost a call, no further call is run. The further calls
    count as lost.

    A rollout with a lost call is not trained on. Waiting for an unreachable judge in every later turn of the rollout
    would therefore be useless.
    """

    def __init__(self, tools: ToolRunner) -> None:
        self._tools = tools
        self._lost: ToolCall | None = None

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        if self._lost is not None:
            return self._lost.model_copy(update={"name": name, "arguments": arguments, "wall_s": 0.0})
        call = await self._tools.run(name, arguments)
        if call.status == "lost":
            self._lost = call
        return call


def _server_message(error: Exception) -> str:
    """Returns the text of an error of VERL's server, without the traceback that Ray adds."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    return str(error) if cause is None else f"{type(cause).__name__}: {cause}"


class RStarAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Runs rollouts. `rstar2.train.command.agent_loop_yaml` writes the loop's settings, which have the same names as in
    the recipe."""

    def __init__(
        self,
        *args: Any,
        judge_url: str,
        judge_token: str | None,
        judge_wait_s: float,
        max_turns: int,
        max_bad_calls: int,
        format: str,
        reward: str,
        penalty: dict[str, float],
        seed: int,
        traces: str,
        trace_share: float,
        may_end_unfinished: bool,
        recover: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._codec = codec_for(self.tokenizer, read_format(format), format)
        self._tools = Toolbox(_judge(judge_url, judge_token, judge_wait_s), self._codec.format)
        self._limits = Limits(max_turns, int(self.rollout_config.response_length), max_bad_calls)
        self._seed = seed
        self._traces = Path(traces)
        with self._ends_training():
            settings = PenaltySettings.model_validate(dict(penalty))
            self._reward = Reward(reward, Penalty(settings, self._limits.max_tokens, max_turns))
        self._trace_share = trace_share
        self._may_end_unfinished = may_end_unfinished
        self._recover = recover

    @contextmanager
    def _ends_training(self) -> Iterator[None]:
        """Context manager in which an error ends training at once, because every further rollout would fail in the same
        way."""
        try:
            yield
        except RStarError as error:
            write_final_error(self._traces.parent, error)
            raise

    def _seed_of(self, row: dict[str, Any], beginning: Beginning | None) -> int | None:
        """Returns the seed of a rollout on a CPU, so that a run can be repeated. Returns None for vLLM, because vLLM is
        faster without a seed."""
        if self.rollout_config.name != CPU_ROLLOUT:
            return None
        name = f"{row['global_steps']} {row['extra_info']['id']}"
        if beginning is not None:
            name += f" after turn {beginning.turns} of {beginning.trace.sample}"
        return sample_seed(self._seed, name, int(row["session_id"]))

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Runs a rollout of the problem that a row of VERL's batch contains."""
        return await self._roll_out(sampling_params, kwargs)

    async def recover(
        self, sampling_params: dict[str, Any], beginning: Beginning, replay: bool, **kwargs: Any
    ) -> AgentLoopOutput:
        """Runs a recovery: a rollout that begins after a failed call of another rollout.

        Args:
            sampling_params: VERL's sampling parameters.
            beginning: the prefix of the other rollout, which the recovery continues.
            replay: whether to run the calls of `beginning` again first. This is necessary if the tool keeps state.
        """
        return await self._roll_out(sampling_params, kwargs, beginning, replay)

    async def _roll_out(
        self,
        sampling_params: dict[str, Any],
        kwargs: dict[str, Any],
        beginning: Beginning | None = None,
        replay: bool = False,
    ) -> AgentLoopOutput:
        first_turns = (
            Trace.begun(self._codec.prompt(list(kwargs["raw_prompt"])))
            if beginning is None
            else beginning.trace.beginning(beginning.turns)
        )
        engine = _ServerEngine(self.server_manager, self._codec, sampling_params, str(kwargs["uid"]))
        tokens, keep_state = None, False
        try:
            async with self._tools.opened() as tools:
                stopping_tools = _StopAfterLostCall(tools)
                for call in first_turns.calls if replay else ():
                    if call.arguments is not None:
                        await stopping_tools.run(call.name, call.arguments)
                trace = await continue_rollout(
                    first_turns,
                    engine=engine,
                    tools=stopping_tools,
                    codec=self._codec,
                    limits=self._limits,
                    sampling=Sampling(
                        float(sampling_params["temperature"]), seed=self._seed_of(kwargs, beginning)
                    ),
                )
                keep_state = self._recover and tools.keep_state
            tokens = len(trace.prompt_ids) + trace.tokens
        except RolloutError as error:
            if self._trace_share > 0:
                if self._may_end_unfinished:
                    # When training ends, the engines stop before this process. Rollouts that fail because of this are
                    # not recorded.
                    await asyncio.sleep(END_S)
                write_failed(self._traces, _with_problem(error.trace, kwargs))
            raise
        except AccessRefused as error:
            # Every further call would be lost too.
            write_final_error(self._traces.parent, error)
            raise
        finally:
            engine.ended(tokens)
        trace = await self._rewarded(_with_problem(trace, kwargs))
        recovery = None if beginning is None else recovery_of(trace, beginning.turns)
        return self._output(trace, engine, recovery, keep_state, bool(sampling_params.get("logprobs")))

    def _output(
        self,
        trace: Trace,
        engine: _ServerEngine,
        recovery: Recovery | None,
        keep_state: bool,
        with_logprobs: bool,
    ) -> AgentLoopOutput:
        """Converts a rollout to VERL's type for rollouts.

        Args:
            trace: the rollout, with its reward.
            engine: the engine that generated the rollout.
            recovery: the result of a recovery, or None if the rollout is not a recovery.
            keep_state: whether the tools keep state from one call to the next.
            with_logprobs: whether VERL uses the log-probabilities.
        """
        # Traces of recoveries are not saved, because readers of traces take each for a whole rollout of the problem.
        with_trace = recovery is None and may_be_kept(trace, self._trace_share, self._seed)
        recoverable = self._recover and recovery is None and may_recover(trace)
        return AgentLoopOutput(
            prompt_ids=trace.prompt_ids,
            response_ids=trace.response_ids,
            response_mask=trace.response_mask,
            response_logprobs=trace.logprobs if with_logprobs else None,
            reward_score=trace.reward,
            num_turns=2 * len(trace.turns),
            metrics=AgentLoopMetrics(),
            extra_fields={
                **engine.versions,
                "reward_extra_info": {"acc": float(trace.correct)},
                **to_extra_fields(trace, with_trace, engine.written_by, recovery),
                **(recoverable_field(trace, keep_state) if recoverable else {}),
            },
        )

    async def _rewarded(self, trace: Trace) -> Trace:
        """Grades the answer of a trace, and returns the trace with its verdict and reward.

        An answer that the grader could not decide counts as not correct, because a model could write such answers on
        purpose.

        Raises:
            GraderFault: the grader failed, and not because of the answer.
            Failure: a user's reward function raised an error, which ends training.
        """
        verdict = await _grader().agrade(trace.gold, text_to_grade(trace, self._reward.name))
        if verdict.grader_failed:
            if self._trace_share > 0:
                write_failed(self._traces, trace)
            raise GraderFault(verdict.rule, trace)
        if missed(verdict) in UNDECIDED:
            log.warning(
                "the grader could not decide the answer of problem %s, sample %d: %s (gold %.200r, answer %.200r)",
                trace.problem_id,
                trace.sample,
                verdict.rule,
                trace.gold,
                verdict.extracted,
            )
        graded = trace.model_copy(update={**asdict(verdict), "read_by": reading_rule(self._reward.name)})
        with self._ends_training():
            # It runs in a thread, because a user's reward function may take long.
            return await asyncio.to_thread(self._reward.rewarded, graded)


def _with_problem(trace: Trace, row: dict[str, Any]) -> Trace:
    """Returns a copy of the trace with the problem, the gold answer and the step from VERL's row."""
    about = row.get("extra_info") or {}
    return trace.model_copy(
        update={
            "problem_id": str(about.get("id", "")),
            "problem": str(about.get("problem", "")),
            "gold": row["reward_model"]["ground_truth"],
            "sample": int(row["session_id"]),
            "step": int(row["global_steps"]),
        }
    )
