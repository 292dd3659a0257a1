"""The projects in examples/: each keeps the promises on real workers, and is as short as its README states."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.faults.processes import Command
from support.markdown import ROOT, Page
from support.servers.processes import free_port
from support.waiting import wait_until
from throttlekit_cli._commands import cli
from throttlekit_cli.demo import BURST, EXAMPLES, PARTNER_BURST, RATE, WORKERS

FOLDER = ROOT / "examples"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"] == "throttlekit-examples"}
"""The services that run the image of this repository."""

Demo = Callable[..., "subprocess.CompletedProcess[str]"]


def text_of(framework: str, name: str = "tasks.py") -> str:
    return (FOLDER / framework / name).read_text("utf-8")


@pytest.mark.workers
@pytest.mark.parametrize("framework", WORKERS)
def test_every_job_runs_once_within_the_bound(run_demo: Demo, demo_folder: Path, framework: str) -> None:
    """
    On two real workers and a real Redis, all jobs run once, with no 429 and in order. There are so few jobs that the
    use of the limit is not judged: it depends on the machine. Nothing is left in the temporary folder. Without a
    terminal, each second is a plain line with the answers, the 429s, the jobs left and a bar.
    """
    outcome = run_demo("--framework", framework, "--jobs", "28", "--workers", "2")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert re.search(r"^429s +0 of 28 calls +none: kept *$", outcome.stdout, re.MULTILINE)
    assert re.search(r"^jobs done +28 of 28 +all: kept *$", outcome.stdout, re.MULTILINE)
    seconds = re.findall(r"^ +(\d+) s +(\d+) answered +0 × 429 +\d+ left {2}█*$", outcome.stdout, re.MULTILINE)
    assert [int(number) for number, _ in seconds] == [*range(1, len(seconds) + 1)]
    assert len(seconds) >= 2
    assert sum(int(calls) for _, calls in seconds) == 28
    assert "\x1b" not in outcome.stdout
    assert list(demo_folder.iterdir()) == []


def test_the_demo_runs_every_example() -> None:
    """Each framework of the demo has a folder with an example, and the installed package has the same files."""
    (option,) = [option for option in cli.commands["demo"].params if option.name == "framework"]
    assert list(option.to_info_dict()["type"]["choices"]) == list(WORKERS)
    assert {path.parent.name for path in FOLDER.glob("*/tasks.py")} == set(WORKERS)
    assert {path.name for path in EXAMPLES.iterdir()} >= {"partner.py", *WORKERS}


@pytest.mark.parametrize("framework", WORKERS)
def test_an_example_is_short(framework: str) -> None:
    """A README has at most 25 lines, and a module at most 60."""
    for path in (FOLDER / framework).iterdir():
        if path.is_file():
            assert len(path.read_text("utf-8").splitlines()) <= (25 if path.suffix == ".md" else 60), path


@pytest.mark.parametrize("framework", WORKERS)
def test_the_readme_of_an_example_has_the_command_that_the_demo_runs(framework: str) -> None:
    """A reader enters the command that is tested."""
    (block,) = Page(f"examples/{framework}/README.md").blocks("console")
    commands = [command.partition("  #")[0].strip() for command, _ in block.commands()]
    assert WORKERS[framework] in commands
    assert "python send.py 200" in commands


@pytest.mark.parametrize("framework", WORKERS)
def test_the_limit_of_an_example_is_the_one_that_the_demo_checks(framework: str) -> None:
    """The partner allows half a second's calls more at once, as its own defaults state."""
    assert f'TokenBucket("partner-api", "{RATE}/s", burst={BURST})' in text_of(framework)
    partner = (FOLDER / "partner.py").read_text("utf-8")
    assert f'"--rate", type=int, default={RATE}' in partner
    assert f'"--burst", type=int, default={PARTNER_BURST}' in partner


@pytest.mark.parametrize("framework", WORKERS)
def test_the_marked_lines_of_an_example_are_all_that_throttlekit_adds(framework: str) -> None:
    """Without the marked lines, the module does not use throttlekit."""
    rest = re.sub(r".*  # throttlekit\n", "", text_of(framework))
    names = {node.id for node in ast.walk(ast.parse(rest)) if isinstance(node, ast.Name)}
    imports = {name for line in rest.splitlines() for name in re.findall(r"^(?:from|import) (\w+)", line)}
    assert not {name for name in imports if name.startswith("throttlekit")}
    assert not names & {"limiter", "limits", "partner", "throttled", "install", "Throttle"}


# The fleet of docker-compose.yml


def local(service: dict[str, Any]) -> Path:
    """Return the working directory of a service, in this tree instead of the image."""
    inside = service.get("working_dir", "/throttlekit/examples")
    assert inside.startswith("/throttlekit/examples")
    return ROOT / Path(inside).relative_to("/throttlekit")


def test_the_compose_file_names_what_exists() -> None:
    """Every dependency between services, every mounted file, every config, and the files of the image exist."""
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        assert {config["source"] for config in service.get("configs", ())} <= set(COMPOSE["configs"])
        for volume in service.get("volumes", ()):
            assert (FOLDER / volume.split(":")[0]).is_dir()
    (build,) = [service["build"] for service in SERVICES.values() if "build" in service]
    copied = re.findall(r"^COPY (.+) \S+$", build["dockerfile_inline"], re.MULTILINE)
    assert all((FOLDER / build["context"] / name).exists() for line in copied for name in line.split())
    assert SERVICES["worker"]["deploy"]["replicas"] == 2


def test_prometheus_and_grafana_are_provisioned_with_what_exists() -> None:
    """Prometheus scrapes services of the file, and Grafana opens the dashboard of the docs."""
    configs = {name: yaml.safe_load(config["content"]) for name, config in COMPOSE["configs"].items()}
    workers, fleet = configs["prometheus"]["scrape_configs"]
    assert workers["dns_sd_configs"][0]["names"] == ["worker"]
    host, _, port = fleet["static_configs"][0]["targets"][0].partition(":")
    assert SERVICES[host]["command"].endswith(f" {port}")
    assert configs["datasource"]["datasources"][0]["url"].startswith("http://prometheus:")
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "docs" / "grafana" / Path(home).name).is_file()
    assert Path(home).parent == Path(configs["dashboards"]["providers"][0]["options"]["path"])


@pytest.mark.parametrize("name", [name for name, each in OWN.items() if each["command"].startswith("throttlekit ")])
def test_a_command_of_throttlekit_accepts_these_options(name: str) -> None:
    """The command exists in the command line, with these options and variables."""
    command, *options = shlex.split(OWN[name]["command"])[1:]
    environment = OWN[name]["environment"]
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        with cli.commands[command].make_context(command, options) as context:
            assert context.params["token"] == environment["THROTTLEKIT_WEB_TOKEN"]


@pytest.mark.workers
def test_the_fleet_of_the_compose_file_works(redis_url: str) -> None:
    """
    The partner, a worker with metrics, the sender and the metrics of the whole limit are started with the commands of
    the compose file. Jobs reach the partner, and Prometheus's targets serve their metrics.
    """
    ports = {port: str(free_port()) for port in ("8000", "9810", "9191")}
    environment = {"dramatiq_prom_port": ports["9191"], "NO_PROXY": "127.0.0.1"}
    for variable, value in OWN["worker"]["environment"].items():
        value = re.sub(r"redis://valkey:6379/\d", redis_url, value)
        environment[variable] = value.replace("partner:8000", f"127.0.0.1:{ports['8000']}")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started: list[Command] = []

    def read(port: str, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[port]}{path}", timeout=10) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    try:
        for name in ("partner", "fleet-metrics", "worker", "send"):
            command = re.sub(r"\b(8000|9810)\b", lambda found: ports[found[0]], OWN[name]["command"])
            command = command.replace("send.py 3000", "send.py 30")
            started.append(Command(shlex.split(command), environment, cwd=local(OWN[name])))
            if name == "partner":
                wait_until(lambda: read("8000", "/record"), description="the partner answers")
        wait_until(lambda: read("8000", "/record").count("200]") == 30, description="every job has called")
        assert "429]" not in read("8000", "/record")
        decided = 'throttlekit_decisions_total{limit="partner-api",outcome="allowed"'
        wait_until(lambda: decided in read("9191", "/metrics"), description="the worker serves its decisions")
        fleet = 'throttlekit_rate_used_ratio{limit="partner-api"'
        wait_until(lambda: fleet in read("9810", "/metrics"), description="the metrics of the whole fleet are served")
    finally:
        for each in started:
            each.close()
