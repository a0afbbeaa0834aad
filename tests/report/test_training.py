"""Tests of training runs on the report page: their curves, their model and their stored rollouts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.commands import rstar2
from support.eval.example_runs import write_rollouts, write_run, write_staged_run
from support.report.browser import Browser
from support.report.report_page import click, open_report, texts

from rstar2.files import write_json
from rstar2.report.collect import collect, stage_traces
from rstar2.train.decision import Decision, write_decision

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_staged_run(tmp_path_factory.mktemp("staged") / "run")


def test_every_plot_names_both_axes(browser: Browser, run: Path) -> None:
    open_report(browser, run)
    names = browser.run(
        "return [...document.querySelectorAll('.plots svg')].map((svg) => "
        "[...svg.querySelectorAll('.axis')].map((node) => node.textContent))"
    )
    assert len(names) == 9
    assert all(len(pair) == 2 and all(pair) for pair in names), names
    assert ["pass rate", "steps"] in names
    assert ["traces", "tokens"] in names


def test_curves_mark_where_each_stage_begins_and_count_whole_steps(browser: Browser, tmp_path: Path) -> None:
    run = write_staged_run(tmp_path)
    for steps in (30, 4, 1):  # with few steps, a plot has room for fractions
        if steps < 30:
            (run / "stage2" / "metrics-1.jsonl").unlink(missing_ok=True)
            for arm in (run, run / "plain"):
                path = arm / "stage1" / "metrics-1.jsonl"
                path.write_text("".join(path.read_text().splitlines(keepends=True)[:steps]))
        open_report(browser, run)
        curves = browser.run(
            "return [...document.querySelectorAll('.plots.small svg')].filter((svg) => "
            "[...svg.querySelectorAll('.axis')].some((node) => node.textContent === 'steps')).map((svg) => "
            "({marks: [...svg.querySelectorAll('text.mark')].map((node) => node.textContent), "
            "lines: [...svg.querySelectorAll('line.mark')].map((node) => +node.getAttribute('x1')), "
            "points: [...svg.querySelectorAll('circle')].map((node) => +node.getAttribute('cx')), "
            "ticks: [...svg.querySelectorAll('text[text-anchor=middle]:not(.axis)')]"
            ".map((node) => node.textContent)}))"
        )
        assert len(curves) == 3
        for curve in curves:
            assert curve["marks"] == (["stage 1", "stage 2"] if steps == 30 else ["stage 1"])
            assert curve["lines"] == [curve["points"][0], *([curve["points"][20]] if steps == 30 else [])]
            assert curve["ticks"]
            assert all(tick.isdigit() and 1 <= int(tick) <= steps for tick in curve["ticks"]), curve["ticks"]


def test_every_measurement_of_the_steps_is_in_a_panel_with_its_data_and_alarms_stand_before(
    browser: Browser, tmp_path: Path
) -> None:
    run = write_staged_run(tmp_path / "run")
    alarm = {"step": 3, "sign": "truncation", "text": "31% of the rollouts end by the token budget"}
    (run / "stage2" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    decision = Decision(10, "stop", "the pass rate has not risen", last_step=11)
    write_decision(run / "stage2", decision)
    open_report(browser, run)
    assert [text.strip() for text in texts(browser, ".alarm")] == [f"alarm stage 2, step 3: {alarm['text']}"]
    assert [text.strip() for text in texts(browser, ".decision")] == [
        "decided stage 2, step 10: the pass rate has not risen: the stage ended with step 11, and no further stage is "
        "run"
    ]
    click(browser, "summary", "Training, step by step")
    browser.wait("document.querySelectorAll('details[open] .plots svg circle').length")
    titles = texts(browser, "details[open] .plots h2")
    assert {"Reward", "Failed calls in correct rollouts", "Length"} <= set(titles)
    links = browser.run(
        "return [...document.querySelectorAll('details[open] a[download]')].map((node) => "
        "[node.download, decodeURIComponent(node.href).split(',').slice(1).join(',')])"
    )
    (steps,) = [text for name, text in links if name == "steps.csv"]
    rows = list(csv.DictReader(io.StringIO(steps)))
    assert [row["stage_step"] for row in rows] == [str(n) for n in [*range(1, 21), *range(1, 11)]]
    assert float(rows[29]["failed_calls"]) == pytest.approx(0.03)
    assert rows[0]["entropy"] == "", "a value that was not measured is empty"
    assert browser.errors() == []


def test_a_measurement_that_is_not_a_number_is_no_point_of_a_curve_and_the_page_stays_whole(
    tmp_path: Path,
) -> None:
    run = write_staged_run(tmp_path / "run")
    data = {"rstar2/pass_rate": 0.5, "rstar2/failed_call_ratio_correct": None, "rstar2/tokens": 80.0}
    with (run / "stage2" / "metrics-1.jsonl").open("a") as file:
        file.write(json.dumps({"step": 11, "data": {**data, "actor/entropy": None}}) + "\n")
    page = collect(run)
    assert page.training is not None
    json.dumps([page.training, page.charts], allow_nan=False)
    row = dict(zip(page.training["columns"], page.training["rows"][-1], strict=True))
    assert (row["pass_rate"], row["entropy"], row["grad_norm"]) == (0.5, "nan", None)
    assert "Entropy in kept rollouts" not in [chart["title"] for chart in page.training["charts"]], (
        "the curve has no point"
    )
    failed = {line["name"]: dict(line["points"]) for line in page.charts[0]["series"]}
    assert failed["GRPO-RoC"][31] == pytest.approx((0.3 / 7 + 0.3 / 8 + 0.3 / 9 + 0.3 / 10) / 4), (
        "the mean is over the measured values"
    )


def test_a_curve_without_any_measurement_is_left_out(tmp_path: Path) -> None:
    run = write_staged_run(tmp_path / "run")
    for file in run.glob("**/metrics-1.jsonl"):
        rows = [json.loads(row) for row in file.read_text().splitlines()]
        for row in rows:
            row["data"]["rstar2/failed_call_ratio_correct"] = None
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [chart["y"] for chart in collect(run).charts] == ["pass rate", "tokens"]
    result = rstar2("runs", "show", run)
    assert (result.code, "pass rate" in result.stdout) == (0, True), result.stderr


def test_the_header_names_the_model_of_every_kind_of_run(browser: Browser, run: Path, tmp_path: Path) -> None:
    open_report(browser, run)
    assert texts(browser, "#top .model") == ["trained from random weights: 4 layers"]
    for kind in ("train", "sft"):
        write_json(tmp_path / kind / "config.json", {"kind": kind, "config": {"model": "/models/base-14b"}})
        open_report(browser, tmp_path / kind)
        assert texts(browser, "#top .model") == ["trained from /models/base-14b"]
    open_report(browser, write_run(tmp_path / "eval", problems=2, samples=1))
    assert texts(browser, "#top .model") == ["made-up-14b"]


def test_kept_rollouts_have_a_tab_with_step_reward_and_use(browser: Browser, run: Path) -> None:
    open_report(browser, run)
    click(browser, ".tabs button", "training, stage 1")
    assert "22 of 22 traces" in texts(browser, ".count")[0]
    assert "stage1/traces" in texts(browser, "main p.muted")[0]
    assert texts(browser, ".row .what")[0].startswith("step 1 · rl-001 · 1")
    browser.wait("document.querySelector('.trace .sample')")
    facts = texts(browser, ".trace .sample")[0]
    assert "step 1 · reward " in facts
    assert "used for the update" in facts
    browser.run("[...document.querySelectorAll('.row')][9].click()")
    browser.wait("document.querySelector('.trace .sample').innerText.includes('sample 2 · step 3')")
    address = browser.run("return location.href")
    assert address.endswith("/rl-001/1/3")
    browser.open(address)
    browser.wait("document.querySelector('.trace .sample')?.innerText.includes('sample 2 · step 3')")
    assert browser.errors() == []


def test_a_rollout_that_the_engine_could_not_finish_is_called_so(browser: Browser, run: Path) -> None:
    open_report(browser, run)
    click(browser, ".tabs button", "training, stage 1")
    click(browser, ".chips button", "engine failed 2")
    browser.wait("document.querySelector('.trace .verdict')?.textContent.startsWith('engine failed')")
    assert "ended by a failure of the engine, not graded" in texts(browser, ".trace .verdict")[0]


def test_a_long_stage_shows_a_bounded_number_of_traces_of_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.report.collect._MOST_OF_STEPS", 30)
    monkeypatch.setattr("rstar2.report.collect._MOST_FAILED", 3)
    write_rollouts(tmp_path / "stage2", steps=35, per_step=3, failed=5)
    (stage,) = stage_traces(tmp_path)
    assert [trace.step for trace, _ in stage.selected() if trace.finish != "error"] == list(range(1, 36, 2))
    assert sum(trace.finish == "error" for trace, _ in stage.selected()) == 3
    write_rollouts(tmp_path / "few" / "stage1", steps=5, per_step=8, failed=0)
    (stage,) = stage_traces(tmp_path / "few")
    assert [trace.step for trace, _ in stage.selected()] == [step for step in range(1, 6) for _ in range(6)]


def test_tabs_stand_in_the_order_in_which_benchmarks_were_asked_for(browser: Browser, tmp_path: Path) -> None:
    names = ("math500", "aime25", "hmmt25", "aime24")
    for name in names:
        write_run(tmp_path, name, problems=2, samples=1)
    open_report(browser, tmp_path)
    tabs = texts(browser, ".tabs button")
    assert len(tabs) == len(names)
    assert all(tab.startswith(name) for tab, name in zip(tabs, names, strict=True)), tabs
