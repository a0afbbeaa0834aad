"""The files in deploy/ refer only to existing paths, extras, lock files, commands and variables. Docker itself does not
run here."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rstar2.cli import app

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile*"))
INSTRUCTIONS = {
    "FROM",
    "RUN",
    "COPY",
    "ENV",
    "VOLUME",
    "EXPOSE",
    "ENTRYPOINT",
    "CMD",
    "WORKDIR",
    "ARG",
    "USER",
}
COPIED = "/usr/src/rstar2"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return (instruction, arguments) pairs. Comments are removed, and continued lines are joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(dockerfile: Path, instruction: str) -> list[str]:
    return [rest for name, rest in instructions(dockerfile) if name == instruction]


def words_of(dockerfile: Path, instruction: str) -> list[str]:
    """Return the words of the only instruction with this name. Its arguments must be a JSON list."""
    (written,) = arguments(dockerfile, instruction)
    return list(json.loads(written))


def accepts(words: list[str]) -> bool:
    """Return whether `rstar2 WORDS` is a command with these options. The command is not run."""
    shown = CliRunner().invoke(app, [*words, "--help"])
    options = [word for word in words if word.startswith("--") and word != "--help"]
    return shown.exit_code == 0 and all(option in shown.output for option in options)


def source_names(name: str) -> bool:
    """Return whether the source of the package contains the name of an environment variable."""
    return any(f'"{name}"' in file.read_text() for file in (ROOT / "rstar2").rglob("*.py"))


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_there_is_an_image_for_the_judge_and_one_for_training() -> None:
    assert [file.name for file in DOCKERFILES] == ["Dockerfile", "Dockerfile.train"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_is_made_of_what_exists(dockerfile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    parts = instructions(dockerfile)
    assert parts[0][0] == "FROM"
    assert {name for name, _ in parts} <= INSTRUCTIONS
    assert re.fullmatch(r"[\w./-]+:[\w.-]+", parts[0][1]), "the base image has a tag"
    for copied in arguments(dockerfile, "COPY"):
        *sources, target = copied.split()
        assert all((ROOT / source).exists() for source in sources)
        assert target == COPIED
    run = "\n".join(arguments(dockerfile, "RUN"))
    extras = re.findall(rf"'{COPIED}\[([\w,]+)\]'", run)
    assert extras, "the image installs this package"
    assert {each for extra in extras for each in extra.split(",")} <= EXTRAS.keys()
    for named in re.findall(rf"{COPIED}/([\w./-]+)", run):
        assert (ROOT / named).is_file(), named
    for text in arguments(dockerfile, "RUN"):
        assert shlex.split(text), "its quotes are closed"
    for variable in arguments(dockerfile, "ENV"):
        assert source_names(variable.partition("=")[0])
    program, *words = [*words_of(dockerfile, "ENTRYPOINT"), *words_of(dockerfile, "CMD")]
    assert program == "rstar2"
    assert accepts(words)


def test_an_image_is_built_from_the_package_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*", "environments, runs, models and tokens are not sent to the builder"
    sent = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    assert all((ROOT / name).exists() for name in sent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    built_from = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    packages = {*wheel["only-include"]}
    assert sent == packages | {file for file in built_from if Path(file).parts[0] not in packages}
    for dockerfile in DOCKERFILES:
        run = "\n".join(arguments(dockerfile, "RUN"))
        assert {named.partition("/")[0] for named in re.findall(rf"{COPIED}/([\w./-]+)", run)} <= sent


def test_the_image_for_training_installs_the_locked_stack_on_an_image_of_the_same_versions() -> None:
    file = DEPLOY / "Dockerfile.train"
    run = "\n".join(arguments(file, "RUN"))
    assert f"-c {COPIED}/constraints/gpu.txt '{COPIED}[gpu]'" in run
    (base,) = arguments(file, "FROM")
    (locked,) = re.findall(
        r"^vllm==(\d+)\.(\d+)\.", (ROOT / "constraints" / "gpu.txt").read_text(), re.MULTILINE
    )
    assert base.startswith("verlai/verl:vllm" + "".join(locked))


def test_the_composition_names_what_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file = compose()
    networks, volumes = file["networks"].keys(), file["volumes"].keys()
    own = {name: service for name, service in file["services"].items() if "build" in service}
    assert own.keys() == {"front", "worker"}
    for service in file["services"].values():
        assert set(service["networks"]) <= networks
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= volumes
        assert set(service.get("depends_on", ())) <= file["services"].keys()
    for service in own.values():
        context = (DEPLOY / service["build"]["context"]).resolve()
        dockerfile = context / service["build"]["dockerfile"]
        assert dockerfile in DOCKERFILES
        command = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", service["command"])
        assert accepts([*words_of(dockerfile, "ENTRYPOINT")[1:], *shlex.split(command)])
        assert all(map(source_names, service["environment"]))
