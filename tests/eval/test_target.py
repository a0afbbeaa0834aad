"""What is measured has a name that tells it from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.vllm_standin import StandIn, serving

from rstar2.eval.target import Target, open_target, reach_server
from rstar2.files import write_json


def test_a_run_s_model_that_a_server_names_by_its_folder_has_the_run_s_name(
    tokenizer: Any, tmp_path: Path
) -> None:
    write_json(tmp_path / "demo" / "config.json", {"kind": "demo", "config": {}})
    folder = tmp_path / "demo" / "stage3" / "model"
    tokenizer.save_pretrained(folder)
    standin = StandIn(lambda prompt: [], names=(str(folder),))
    standin.root = str(folder)
    with serving(standin):
        target = Target(None, standin.url, None, False)
        opened = open_target(target, [], 1, reach_server(target, 5.0))
    assert opened.identity["name"] == "demo-stage3"
