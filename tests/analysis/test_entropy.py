"""Entropies from a forward pass, bounds from a server's top-k log-probabilities, and the file that stores them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.servers.vllm_standin import StandIn, serving

from rstar2.analysis import server
from rstar2.analysis.entropy import entropy_bounds, stored_surprisal
from rstar2.analysis.stored import STEP, TokenEntropies, as_stored, place_of, read_entropies, write_entropies
from rstar2.engines.models import find_model
from rstar2.errors import UserError
from rstar2.loop.engine import EngineError
from rstar2.loop.trace import Trace, TraceWriter
from rstar2.retry import RetryPolicy


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Any:
    from rstar2.analysis import forward

    return forward.load_model(find_model(str(model_folder)) or model_folder)


@pytest.fixture(scope="module")
def traces(make_trace: Any) -> list[Trace]:
    """Traces of several lengths, so that batches are padded."""
    return [make_trace(("ok",) * number, problem=f"p{number}", sample=number) for number in range(4)]


def _logits(model: Any, trace: Trace) -> Any:
    """The logits that predict each token that the model wrote, of shape (M, V). They are computed without batches and
    without a KV cache."""
    import torch

    ids = torch.tensor([[*trace.prompt_ids, *trace.response_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(trace.prompt_ids) - 1 : -1].float()
    return logits[torch.tensor(trace.response_mask, dtype=torch.bool)]


def _direct(model: Any, trace: Trace) -> Any:
    """Computes the entropy from its definition, in 64 bits."""
    p = _logits(model, trace).double().softmax(dim=-1)
    return -(p * p.log()).sum(-1).numpy()


@pytest.mark.slow
def test_the_forward_pass_agrees_with_the_definition_and_with_verl(
    model: Any, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.torch_functional import entropy_from_logits

    from rstar2.analysis import forward

    # This limit splits the longest sequence into several pieces.
    monkeypatch.setattr(forward, "LOGITS", 4 * 40 * 600)
    trace_entropies = forward.entropies(model, traces)
    for trace, entropy in zip(traces, trace_entropies, strict=True):
        assert len(entropy) == sum(trace.response_mask)
        assert np.abs(entropy - _direct(model, trace)).max() < 1e-4
        assert np.abs(entropy - entropy_from_logits(_logits(model, trace)).numpy()).max() < 1e-4
    assert 0.1 < np.concatenate(trace_entropies).mean() < 6
    assert np.concatenate(trace_entropies).std() > 0.1


def test_a_small_model_computes_in_one_thread_and_the_others_come_back(
    model: Any, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from rstar2.analysis import forward

    threads = torch.get_num_threads()
    batch_sizes: list[int] = []
    batches = []
    direct = forward._batch_entropies

    def record_batch(model: Any, batch: list[Trace], temperature: float) -> Any:
        batch_sizes.append(torch.get_num_threads())
        batches.append(len(batch))
        return direct(model, batch, temperature)

    monkeypatch.setattr(forward, "_batch_entropies", record_batch)
    small = forward.entropies(model, traces)
    monkeypatch.setattr(forward, "SMALL_BATCH_TOKENS", 1)
    alone = forward.entropies(model, traces)
    assert (batches, set(batch_sizes)) == ([4, 1, 1, 1, 1], {1})
    monkeypatch.setattr(forward, "SMALL_MODEL", 0)
    large = forward.entropies(model, traces)
    assert batch_sizes[-1] == torch.get_num_threads() == threads
    for one, two, three in zip(small, alone, large, strict=True):
        assert np.abs(one - two).max() < 1e-4
        assert np.abs(one - three).max() < 1e-4


def test_the_temperature_is_that_of_the_distribution(model: Any, traces: list[Trace]) -> None:
    from rstar2.analysis import forward

    (entropy,) = forward.entropies(model, traces[:1], temperature=0.5)
    p = (_logits(model, traces[0]).double() / 0.5).softmax(dim=-1)
    assert np.abs(entropy - (-(p * p.log()).sum(-1)).numpy()).max() < 1e-4


def test_a_token_that_the_model_does_not_know_is_named(model: Any, traces: list[Trace]) -> None:
    from rstar2.analysis import forward

    foreign = traces[0].model_copy(update={"response_ids": [99999] * len(traces[0].response_ids)})
    with pytest.raises(UserError, match="token 99999"):
        forward.entropies(model, [foreign])


def test_the_entropy_lies_between_the_bounds_from_the_likeliest_tokens() -> None:
    rng = np.random.default_rng(0)
    for sharpness in (0.1, 1.0, 4.0, 30.0):
        logits = rng.normal(size=(200, 500)) * sharpness
        logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= logits.max(-1, keepdims=True)
        exact = -(np.exp(logprobs) * logprobs).sum(-1)
        for k in (1, 5, 20):
            lower, upper = entropy_bounds(np.sort(logprobs, axis=-1)[:, -k:], 500)
            assert (lower <= exact + 1e-9).all()
            assert (upper >= exact - 1e-9).all()
        # If almost no token is left out, both bounds equal the entropy.
        lower, upper = entropy_bounds(logprobs, 500)
        assert np.allclose(lower, exact) and np.allclose(upper, exact)  # noqa: PT018


def test_the_bounds_are_reached_by_the_flattest_and_the_steepest_rest() -> None:
    flat = np.array([0.5, *[0.05] * 10])
    lower, upper = entropy_bounds(np.log(flat[:1])[None], 11)
    assert upper[0] == pytest.approx(-(flat * np.log(flat)).sum())
    assert lower[0] == pytest.approx(np.log(2))


class _Knowing(StandIn):
    """A server that also gives the log-probabilities of a prompt, as a real model computes them."""

    def __init__(self, model: Any) -> None:
        super().__init__(lambda prompt: [1])
        self.known = model

    def _write(self, body: dict[str, Any]) -> tuple[list[int], str]:
        return [1], "length"

    def _choice(self, token_ids: list[int], finish: str | None) -> dict[str, Any]:
        import torch

        body = self.requests[-1]
        choice = super()._choice(token_ids, finish)
        if self.known is not None:
            with torch.no_grad():
                logits = self.known(input_ids=torch.tensor([body["prompt"]])).logits[0, :-1]
            top = torch.log_softmax(logits.float(), -1).topk(body["prompt_logprobs"])
            choice["prompt_logprobs"] = [None] + [
                {str(i): {"logprob": p} for i, p in zip(ids, ps, strict=True)}
                for ids, ps in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
        return choice


@pytest.fixture
def knowing(model: Any) -> Iterator[_Knowing]:
    with serving(_Knowing(model)) as started:
        yield started


def _bounds_server(served: _Knowing, vocabulary: int) -> server.BoundsServer:
    return server.BoundsServer(served.url, None, vocabulary, RetryPolicy(server.WAIT_S))


def test_the_bounds_of_a_server_hold_the_exact_entropy(
    knowing: _Knowing, model: Any, traces: list[Trace]
) -> None:
    from rstar2.analysis import forward

    vocabulary = model.config.vocab_size
    bound_pairs = _bounds_server(knowing, vocabulary).bounds(traces[1:2])
    exact = forward.entropies(model, traces[1:2])
    for (lower, upper), entropy in zip(bound_pairs, exact, strict=True):
        assert len(lower) == len(entropy)
        assert (lower <= entropy + 1e-4).all()
        assert (upper >= entropy - 1e-4).all()


def test_a_server_without_log_probabilities_is_told_of(knowing: _Knowing, traces: list[Trace]) -> None:
    knowing.known = None
    with pytest.raises(EngineError, match="returned no log-probabilities"):
        _bounds_server(knowing, 600).bounds(traces[:1])


def test_what_traces_kept_is_the_surprise_of_their_own_tokens(traces: list[Trace]) -> None:
    surprisal = stored_surprisal(traces[1])
    assert surprisal is not None
    assert len(surprisal) == sum(traces[1].response_mask)
    assert np.allclose(surprisal, 0.5)
    assert stored_surprisal(traces[1].model_copy(update={"logprobs": None})) is None


def test_the_file_beside_the_traces_is_exact_to_half_a_step_and_knows_when_they_changed(
    tmp_path: Path, traces: list[Trace]
) -> None:
    path = tmp_path / "traces.jsonl"
    with TraceWriter(path) as writer:
        writer.write(traces[0])
    entropy = np.random.default_rng(0).uniform(0, 12, 1000).astype(np.float32)
    token_entropies = TokenEntropies(
        about={"source": "model", "bytes": path.stat().st_size},
        sizes=np.array([400, 0, 600]),
        entropy=entropy,
        upper=entropy + 0.5,
        characters=np.arange(1000, dtype=np.uint16),
        marks=np.zeros(1000, dtype=np.uint8),
    )
    write_entropies(path, token_entropies)
    read_again = read_entropies(path)
    assert read_again is not None
    assert np.abs(read_again.entropy - entropy).max() <= 0.51 * STEP
    assert np.array_equal(as_stored(entropy), read_again.entropy)
    assert np.array_equal(as_stored(read_again.entropy), read_again.entropy)
    assert as_stored(np.array([-1e-6, 20.0])) == pytest.approx([0, 65_535 * STEP])
    assert [len(part) for part in read_again.split(read_again.entropy)] == [400, 0, 600]
    assert place_of(path).stat().st_size < 8 * 1000
    with TraceWriter(path) as writer:
        writer.write(traces[1])
    assert read_entropies(path) is None
    place_of(path).write_bytes(b"PK")
    with pytest.raises(UserError, match=r"traces\.entropy\.npz"):
        read_entropies(path)
