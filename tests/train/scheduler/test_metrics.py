"""Tests that the state of the KV cache is read from vLLM's metrics."""

from __future__ import annotations

from rstar2.train.scheduler.metrics import Reading, read_vllm

TEXT = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 1.0
vllm:num_preemptions_total{engine="0",model_name="policy"} 7.0
vllm:cache_config_info{_block_size_resolved="True",block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
"""


def test_capacity_use_and_preemptions() -> None:
    assert read_vllm(TEXT) == Reading(16_000, 0.25, running=3, waiting=1, preemptions=7)


def test_engines_with_data_parallelism_are_read_as_one() -> None:
    other = TEXT.replace('engine="0"', 'engine="1"').replace("0.25", "0.75")
    assert read_vllm(TEXT + other) == Reading(32_000, 0.75, running=6, waiting=2, preemptions=14)


def test_an_engine_that_logs_nothing_has_no_reading() -> None:
    assert read_vllm('python_info{version="3.11"} 1.0\n') is None
    assert read_vllm('vllm:kv_cache_usage_perc{engine="0"} 0.5\n') == Reading(None, 0.5, 0, 0, 0)
