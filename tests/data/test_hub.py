"""Tests of sources on a hub with the real layouts, and with more splits and columns than are used.

Sent bytes are counted.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.hub import REVISION, TOKEN, Hub, serving_hub
from support.source_rows import ROWS

from rstar2.data.hub import Demand, check_disk, files_of_split
from rstar2.data.source import HubSet
from rstar2.errors import UserError

pytestmark = pytest.mark.slow

README = """---
configs:
{configs}
---
# A set
"""
LONG = "".join(f"{n * n * 2654435761 % 1000003:x}" for n in range(3000))
"""Text that hardly compresses, for splits and columns that are not used."""


def readme(folder: Path, **configs: dict[str, str]) -> None:
    """Returns the card of a set: for each config, the files of its splits."""
    lines = []
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, path in splits.items():
            lines += [f"  - split: {split}", f"    path: {path}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(README.format(configs="\n".join(lines)))


def parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=20)


def text(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def varied(name: str, count: int, old: str, new: str) -> list[dict[str, Any]]:
    """Returns rows of a source that differ from each other in one text."""
    line = json.dumps(ROWS[name], ensure_ascii=False)
    assert old in line
    return [json.loads(line.replace(old, new.format(n=n))) for n in range(count)]


def write_sets(root: Path) -> None:
    """Write a hub with every source of the shipped mixtures. Each is laid out like its real repository."""
    dapo = root / "open-r1/DAPO-Math-17k-Processed"
    readme(dapo, **{name: {"train": f"{name}/train-*"} for name in ("all", "cn", "en")})
    for config in ("all", "cn", "en"):
        rows = varied("dapo", 40, "7$", "{n}$")
        extra = {"data_source": "math_dapo", "ability": "MATH", "source_prompt": LONG}
        parquet(dapo / config / "train-00000-of-00001.parquet", [{**row, **extra} for row in rows])

    aops = root / "nvidia/OpenMathReasoning"
    splits = ("cot", "tir", "genselect", "additional_problems")
    readme(aops, default={split: f"data/{split}-*" for split in splits})
    for split in splits:
        for part in range(2):
            rows = varied("openmathreasoning", 60, "above 90", f"above {part}{{n}}")
            rows = [{**row, "generated_solution": f"{n}{LONG}"} for n, row in enumerate(rows)]
            parquet(aops / f"data/{split}-0000{part}-of-00002.parquet", rows)

    nemotron = root / "nvidia/Llama-Nemotron-Post-Training-Dataset"
    areas = ("code", "math", "science", "chat", "safety")
    readme(
        nemotron,
        SFT={area: f"SFT/{area}/*.jsonl" for area in areas},
        RL={"instruction_following": "RL/instruction_following/*.jsonl"},
    )
    chats = varied("llama-nemotron", 30, "Hello?", "Hello {n}?")
    chats += [{**row, "reasoning": "on", "output": f"<think>{LONG}</think>Hi"} for row in chats]
    lines = "".join(json.dumps(row) + "\n" for row in chats)
    for area in areas:
        text(nemotron / f"SFT/{area}/{area}.jsonl", lines * (1 if area == "chat" else 5))
    text(nemotron / "RL/instruction_following/instruction_following.jsonl", lines)

    for hub_id, name, file in (
        ("Team-ACE/ToolACE", "toolace", "data.json"),
        ("glaiveai/glaive-function-calling-v2", "glaive-v2", "glaive-function-calling-v2.json"),
        ("hiyouga/glaive-function-calling-v2-sharegpt", "glaive-sharegpt", "glaive_toolcall.json"),
        ("Salesforce/APIGen-MT-5k", "apigen-mt", "apigen-mt_5k.json"),
    ):
        rows = varied(name, 25, "Zürich", "Zürich {n}")
        text(root / hub_id / file, json.dumps(rows, ensure_ascii=False, indent=1))
        text(root / hub_id / "README.md", "# A set\n")
    for hub_id, rows in (
        ("ise-uiuc/Magicoder-OSS-Instruct-75K", varied("magicoder", 20, "ten", "{n}")),
        (
            "ise-uiuc/Magicoder-Evol-Instruct-110K",
            [{"instruction": f"Print {n}.", "response": f"```python\nprint({n})\n```"} for n in range(20)],
        ),
    ):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        text(root / hub_id / "data-decontaminated.jsonl", lines)
    tulu = root / "allenai/tulu-3-sft-personas-instruction-following"
    readme(tulu, default={"train": "data/train-*"})
    parquet(tulu / "data/train-00000-of-00001.parquet", varied("tulu3", 20, "three words", "{n} words"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    write_sets(root)
    return root


@pytest.fixture
def hub(sets: Path) -> Iterator[Hub]:
    with serving_hub(sets) as server:
        server.gated = {"Salesforce/APIGen-MT-5k"}
        yield server


def run(*words: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar2", "data", *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )


def error_of(*words: str | Path, env: dict[str, str]) -> str:
    result = run("prepare", *words, env=env)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


NO_BENCHMARK = ("--set", "against=[]")


def sources_of(folder: Path) -> dict[str, Any]:
    sources: dict[str, Any] = json.loads((folder / "card.json").read_text())["sources"]
    return sources


def test_paper_rl_reads_only_its_splits_and_columns(hub: Hub, sets: Path, tmp_path: Path) -> None:
    euler = tmp_path / "euler.json"
    euler.write_text(json.dumps([ROWS["project-euler"]]))
    out = tmp_path / "out"
    words = ("paper-rl", "--from", f"project-euler={euler}", "--output", out, *NO_BENCHMARK)
    result = run("prepare", *words, env=hub.env(tmp_path / "home"))
    assert result.returncode == 0, result.stderr
    assert {name: each["read"] for name, each in sources_of(out).items()} == {
        "dapo": 40,
        "openmathreasoning": 120,
        "project-euler": 1,
    }
    files = {name: size for name, size in hub.sent.items() if name.endswith(".parquet")}
    assert {name.rpartition("/")[2][:3] for name in files} == {"tra", "cot"}
    assert all("/en/" in name or "/data/cot-" in name for name in files)
    whole = sum((sets / name).stat().st_size for name in files)
    assert sum(files.values()) < whole / 5, "the solutions are not read"
    home = sum(path.stat().st_size for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert home < 50_000, "nothing is prepared on disk beside the rows"
    (place,) = sources_of(out)["dapo"]["inputs"]
    assert place["hub"] == "open-r1/DAPO-Math-17k-Processed (en, train)"
    assert f"revision {place['revision']}" in (out / "card.md").read_text()


def test_paper_sft_reads_only_its_splits_also_a_second_time_without_a_network(
    hub: Hub, sets: Path, tmp_path: Path
) -> None:
    minimums = [
        f"sources.{name}.minimum={minimum}"
        for name, minimum in (("glaive-v2", 10), ("magicoder", 10), ("llama-nemotron", 10))
    ]
    words = [*NO_BENCHMARK, *(word for each in minimums for word in ("--set", each))]
    env = hub.env(tmp_path / "home", TOKEN)
    result = run("prepare", "paper-sft", "--output", tmp_path / "out", *words, env=env)
    assert result.returncode == 0, result.stderr
    sources = sources_of(tmp_path / "out")
    assert {name: each["read"] for name, each in sources.items()} == {
        "toolace": 25,
        "apigen-mt": 25,
        "glaive-v2": 25,
        "magicoder": 40,
        "tulu3": 20,
        "llama-nemotron": 60,
    }
    assert sources["glaive-v2"]["missing"] == 101_000 - 25
    assert [name for name in hub.sent if "Nemotron" in name and name.endswith("l")] == [
        "nvidia/Llama-Nemotron-Post-Training-Dataset/SFT/chat/chat.jsonl"
    ]
    whole = {name: size for name, size in hub.sent.items() if ".json" in name}
    assert len(whole) == 6
    assert all(size == (sets / name).stat().st_size for name, size in whole.items()), "each file is sent once"

    env |= {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    names = ("toolace", "llama-nemotron")
    again = run("prepare", *names, "--output", tmp_path / "again", *NO_BENCHMARK, env=env)
    assert again.returncode == 0, again.stderr
    assert [each["read"] for each in sources_of(tmp_path / "again").values()] == [25, 60]
    message = error_of("tulu3", "--output", tmp_path / "none", *NO_BENCHMARK, env=env)
    assert "HF_HUB_OFFLINE is set, and the hub's cache has no files of allenai/tulu-3" in message
    assert "hf download allenai/tulu-3-sft-personas-instruction-following --repo-type dataset" in message
    assert "--from tulu3=FILE" in message


def test_a_gated_source_is_refused_before_another_is_read(hub: Hub, tmp_path: Path) -> None:
    message = error_of("toolace", "apigen-mt", "--output", tmp_path / "out", env=hub.env(tmp_path / "home"))
    assert "apigen-mt: Salesforce/APIGen-MT-5k is gated" in message
    assert "https://huggingface.co/datasets/Salesforce/APIGen-MT-5k, then run `hf auth login`" in message
    assert not [name for name in hub.sent if name.endswith("data.json")]
    assert not (tmp_path / "out").exists()


def test_without_a_network_the_variable_for_the_cache_is_named_at_once(hub: Hub, tmp_path: Path) -> None:
    env = hub.env(tmp_path / "home") | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    message = error_of("toolace", "--output", tmp_path / "out", env=env)
    assert "toolace: cannot reach the dataset hub for Team-ACE/ToolACE" in message
    assert "HF_HUB_OFFLINE=1" in message
    assert "--from toolace=FILE" in message
    assert not hub.requests


def test_a_split_that_the_set_lacks_is_named_with_those_it_has(hub: Hub, sets: Path, tmp_path: Path) -> None:
    readme(tmp_path / "sets/nvidia/OpenMathReasoning", default={"solutions": "data/cot-*"})
    parquet(tmp_path / "sets/nvidia/OpenMathReasoning/data/cot-00000-of-00001.parquet", [{"problem": "?"}])
    with serving_hub(tmp_path / "sets") as other:
        message = error_of(
            "openmathreasoning", "--output", tmp_path / "out", *NO_BENCHMARK, env=other.env(tmp_path / "home")
        )
    assert "nvidia/OpenMathReasoning has no split cot; it has solutions" in message


def test_a_column_that_the_set_lacks_is_named_before_a_row_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sets/open-r1/DAPO-Math-17k-Processed"
    readme(folder, en={"train": "en/train-*"})
    parquet(folder / "en/train-00000-of-00001.parquet", [{"prompt": "?"}])
    with serving_hub(tmp_path / "sets") as hub:
        message = error_of(
            "dapo", "--output", tmp_path / "out", *NO_BENCHMARK, env=hub.env(tmp_path / "home")
        )
    assert (
        "open-r1/DAPO-Math-17k-Processed/en/train-00000-of-00001.parquet has no column reward_model"
        in message
    )


def test_a_series_of_files_that_is_not_complete_is_refused(sets: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "home/hub/datasets--nvidia--OpenMathReasoning/snapshots" / REVISION
    source = sets / "nvidia/OpenMathReasoning"
    for name in ("README.md", "data/cot-00000-of-00002.parquet"):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes((source / name).read_bytes())
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(REVISION)
    env = Hub(sets).env(tmp_path / "home") | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    message = error_of("openmathreasoning", "--output", tmp_path / "out", *NO_BENCHMARK, env=env)
    assert "nvidia/OpenMathReasoning (default, cot): only 1 of its 2 files are there" in message


def test_too_small_a_disk_is_refused_before_a_row_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_disk([Demand(read=1000, download=1000)], tmp_path / "to" / "come")
    with pytest.raises(UserError, match=r"not enough disk space: .* needs about .*, and .* are free"):
        check_disk([Demand(read=2 * free, download=0)], tmp_path / "to" / "come")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="not enough disk"):
        check_disk([Demand(read=0, download=free // 3)] * 4, Path("/dev/shm"))


def test_an_unknown_set_may_be_private(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    with serving_hub(tmp_path / "sets") as hub:
        message = error_of("toolace", "--output", tmp_path / "out", env=hub.env(tmp_path / "home"))
    assert "the hub has no data set Team-ACE/ToolACE, or it is private" in message
    assert "hf auth login" in message


@pytest.mark.parametrize(
    ("configs", "config", "split", "paths", "expected"),
    [
        ("", None, "train", ["README.md", "data.json", ".x.json"], ["data.json"]),
        ("", None, "train", ["test.json", "train-b.json", "train-a.json"], ["train-a.json", "train-b.json"]),
        ("- config_name: default\n  data_files: b.jsonl", None, "train", ["a.jsonl", "b.jsonl"], ["b.jsonl"]),
        (
            "- config_name: x\n  data_files: [c*.json, d.json]\n  default: true\n- config_name: y",
            None,
            "train",
            ["c1.json", "d.json", "e.json", "c/1.json"],
            ["c1.json", "d.json"],
        ),
        (
            "- config_name: SFT\n  data_files:\n  - split: chat\n    path: [SFT/**/chat*.jsonl]",
            "SFT",
            "chat",
            ["SFT/a/b/chat1.jsonl", "SFT/chat2.jsonl", "RL/chat3.jsonl"],
            ["SFT/a/b/chat1.jsonl", "SFT/chat2.jsonl"],
        ),
        ("", None, "train", ["a.json", "dataset_infos.json", ".cache/b.json"], ["a.json"]),
        (
            "",
            None,
            "train",
            ["dataset_dict.json", "train/0.parquet", "train/state.json", "train/dataset_info.json"],
            ["train/0.parquet"],
        ),
        ("- config_name: en\n  data_dir: en", "en", "train", ["en/a.json", "cn/a.json"], ["en/a.json"]),
        ("- config_name: en\n  data_dir: test/en", "en", "train", ["test/en/a.json"], ["test/en/a.json"]),
        (
            "- config_name: en\n  data_dir: en\n  data_files: '*.json'",
            None,
            "train",
            ["a.json", "en/a.json"],
            ["en/a.json"],
        ),
        (
            "- config_name: x\n  data_files:\n    train: [a.json, b.json]\n    test: c.json",
            "x",
            "train",
            ["a.json", "b.json", "c.json"],
            ["a.json", "b.json"],
        ),
        ("- data_files:\n    path: a.json", None, "train", ["a.json", "b.json"], ["a.json"]),
        (
            "- config_name: x\n  data_files:\n  - split: train\n    path: 'd/{a,b}-*.json'",
            "x",
            "train",
            ["d/a-1.json", "d/b-1.json", "d/c-1.json"],
            ["d/a-1.json", "d/b-1.json"],
        ),
    ],
)
def test_the_files_of_a_split_are_those_that_the_sets_card_lists(
    configs: str, config: str | None, split: str, paths: list[str], expected: list[str]
) -> None:
    card = f"---\nconfigs:\n{configs}\n---\n" if configs else "# A set\n"
    assert files_of_split("it", HubSet("a/b", config, split), card, paths) == expected


def test_a_config_that_no_card_describes_is_refused() -> None:
    with pytest.raises(UserError, match="a/b has no config en; it has none in its card"):
        files_of_split("it", HubSet("a/b", "en", "train"), "# A set", ["en/a.json", "cn/a.json"])


def test_patterns_of_a_card_that_match_no_file_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sets/open-r1/DAPO-Math-17k-Processed"
    readme(folder, en={"train": "data/train-*"})
    parquet(folder / "en/train-00000-of-00001.parquet", [{"prompt": "?"}])
    with serving_hub(tmp_path / "sets") as hub:
        message = error_of(
            "dapo", "--output", tmp_path / "out", *NO_BENCHMARK, env=hub.env(tmp_path / "home")
        )
    assert (
        "no file of open-r1/DAPO-Math-17k-Processed matches the patterns that its card has for "
        "open-r1/DAPO-Math-17k-Processed (en, train)" in message
    )


def test_the_librarys_lines_about_retries_and_cards_become_one_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    http = logging.getLogger("huggingface_hub.utils._http")
    for attempt in (1, 2, 3):
        http.warning("'timed out' thrown while requesting GET http://hub/a.parquet")
        http.warning(f"Retrying in {attempt}s [Retry {attempt}/5].")
    http.warning("something else")
    logging.getLogger("huggingface_hub.repocard").warning("Repo card metadata block was not found.")
    assert caplog.messages == [
        "the dataset hub does not answer (timed out); the request is repeated up to 5 times",
        "something else",
    ]
