"""The command line's surface is frozen here: a new command or option is a decision, not an accident."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from offbeat.cli import app, main

SURFACE = {
    "train": {"config", "out", "resume", "backend", "address", "learner_processes", "overrides", "as_json"},
    "verify": {"run", "recompute", "seed", "as_json"},
    "report": {"run", "out", "as_json"},
    "compare": {"config", "out", "schedules", "iterations", "warmup", "repeats", "overrides", "as_json"},
    "explain": {"run", "as_json"},
    "doctor": {"ray", "vllm", "as_json"},
    "plan": {"run", "staleness", "steps", "out", "as_json"},
    "study": {"name", "seeds", "smoke", "first_seed", "out", "reuse", "workers", "as_json"},
    "models get": {"name", "out", "as_json"},
    "serve": {
        "directory",
        "host",
        "port",
        "key_file",
        "name",
        "lanes",
        "slots",
        "threads",
        "context",
        "max_tokens",
        "max_calls",
        "max_body",
        "max_sessions",
        "lease",
        "max_versions",
        "keep_versions",
        "record",
        "engine",
        "as_json",
    },
    "simulate": {"cluster", "schedules", "calibrate", "sweep", "keep", "out", "overrides", "as_json"},
}


_INDUSTRY = {"demand", "quality", "cost", "mu", "outside", "substitution", "transport", "elasticity", "intercept"}
_INDUSTRY |= {"lowest", "highest"}
_SCENARIO = _INDUSTRY | {"clock", "rate", "latency", "latency_law", "rho"}
_SHOCK = {
    "policies",
    "cell",
    "deviator",
    "kind",
    "decisions",
    "at",
    "watched",
    "size",
    "lasting",
    "markets",
    "seed",
    "out",
}
_TRAIN = {"config", "out", "resume", "overrides", "cores", "as_json"}
SURFACE |= {
    "market equilibrium": _INDUSTRY | {"rho", "rate", "grid", "as_json"},
    "market bench": _SCENARIO | {"markets", "events", "repeats", "as_json"},
    "market audit": _SCENARIO | {"target", "horizon", "markets", "seed", "firm", "answer_seconds", "out", "as_json"},
    "market run": _TRAIN,
    "market sweep": _TRAIN,
    "market shock": _SCENARIO | _SHOCK | {"as_json"},
}


def commands() -> dict[str, typer.core.TyperCommand]:
    """Every command by its full name; those of a group are `group command`."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {sub}": c for sub, c in inner.items()}
    return found


def test_surface() -> None:
    found = {name: {p.name for p in command.params if p.name != "help"} for name, command in commands().items()}
    assert found == SURFACE


def test_every_command_and_option_has_help() -> None:
    for name, command in commands().items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", "") or parameter.name == "help", f"{name} {parameter.name}"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "offbeat.cli", *arguments], capture_output=True, text=True)


def test_bad_usage_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["train", "--nonsense"],
        ["nonsense"],
        ["train", "missing.toml"],
        ["train", "--set", "learner.iterations=none"],
        ["train", "--set", "schedule.max_staleness=-1"],
        ["train", "--resume", str(tmp_path / "nothing")],
        ["train", "--resume", str(tmp_path), "--set", "run.seed=1"],
        ["verify", str(tmp_path)],
        ["report", str(tmp_path)],
        ["plan", str(tmp_path)],
        ["explain", str(tmp_path)],
        ["explain", str(tmp_path / "nothing")],
        ["doctor", "--nonsense"],
        ["study", "nonsense", "--out", str(tmp_path / "s")],
        ["study", "bias", "--seeds", "0", "--out", str(tmp_path / "s")],
        ["compare", "--schedules", "sink", "--out", str(tmp_path / "c")],
        ["compare", "--iterations", "3", "--out", str(tmp_path / "c")],
        ["models", "get", "nonsense", "--out", str(tmp_path / "m")],
        ["serve", str(tmp_path / "nothing")],
        ["serve", str(tmp_path)],
        ["serve", str(tmp_path), "--host", "0.0.0.0"],
        ["serve", str(tmp_path), "--key-file", str(tmp_path / "nothing")],
        ["simulate"],
        ["simulate", "nowhere.toml"],
        ["simulate", "dora-64", "--schedules", "sink"],
        ["simulate", "dora-64", "--set", "schedule.train_batch_size=100"],
        ["compare", "--set", "run.time_limit_seconds=60", "--out", str(tmp_path / "c")],
    ):
        monkeypatch.setattr(sys, "argv", ["offbeat", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert end.value.code == 2, (arguments, err)
        assert len(err.strip().splitlines()) == 1, err
        assert out == ""
    assert list(tmp_path.iterdir()) == []
    done = run("train", "--nonsense")
    assert (done.returncode, len(done.stderr.strip().splitlines()), done.stdout) == (2, 1, "")


def test_version() -> None:
    assert re.fullmatch(r"offbeat \d+\.\d+\.\d+", run("--version").stdout.strip())
