"""BFCL v4 without two kinds of categories: web search needs API keys, and vector memory downloads a model."""

from __future__ import annotations

from rstar2.eval.benchmarks import Benchmark
from rstar2.eval.benchmarks.bfcl_v3 import (
    GREEDY,
    MULTI_TURN,
    by_count,
    grouped,
    loading,
    mean_by_name,
    opening,
)
from rstar2.eval.harnesses.environment import Harness

HARNESS = Harness(
    name="bfcl-eval",
    benchmarks=("bfcl-v4",),
    packages=("bfcl-eval==2026.3.23",),
    modules=("bfcl_eval", "tree_sitter", "openai"),
    left_out=(
        *("anthropic", "boto3", "cohere", "google-genai", "mistralai", "qwen-agent", "writer-sdk"),
        *("sentence-transformers", "faiss-cpu", "datamodel-code-generator", "huggingface-hub"),
        *("google-search-results", "networkx", "pandas", "typer", "tabulate"),
    ),
)
_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_GROUPS = {
    "simple, all languages": mean_by_name(*_SIMPLE),
    "non-live": mean_by_name("simple, all languages", "multiple", "parallel", "parallel_multiple"),
    "live": by_count("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    "hallucination": mean_by_name("irrelevance", "live_irrelevance"),
    "multi-turn": mean_by_name(*MULTI_TURN),
}
"""The groups of the v4 leaderboard. The leaderboard's groups `overall` and `memory` are absent, because they need
categories that this benchmark does not run."""

BENCHMARK = Benchmark(
    load=loading(HARNESS, "bfcl_v4"),
    open=opening(HARNESS, "bfcl_v4", folder="memory"),
    protocol=GREEDY,
    harness=HARNESS,
    chat=True,
    combined=lambda scores: grouped(scores, _GROUPS),
)
