"""What the user did wrong is one line on stderr and exit status 2; nothing half-made is taken for whole afterwards."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

import etude.runtime
from etude.cli import main
from etude.config import Config, load_config
from etude.config.jobs import CorpusJob, EvalJob, PretrainJob, RLJob
from etude.config.tasks import KatasConfig
from etude.corpus import Tokenizer
from etude.machines.process import root
from etude.models import build_model, save_model
from etude.records import InfraError, UserError
from etude.runtime import rl_job
from etude.tasks.katas import KataSource, Split
from etude.weights import WeightsError
from tests.flows.tiny_run import write_configs
from tests.models.tiny import config as tiny_config

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
COMMANDS: dict[str, type[Config]] = {
    "corpus build": CorpusJob,
    "pretrain": PretrainJob,
    "rl": RLJob,
    "eval": EvalJob,
}


@dataclass
class Ran:
    code: int
    out: str
    err: str

    def refused(self, *said: str) -> None:
        """Exit status 2 and one line on stderr that says all of this."""
        assert self.code == 2
        (line,) = self.err.splitlines()
        assert line.startswith("etude: ")
        for words in said:
            assert words in line


class Etude:
    """The command in this process: much faster than a new one for each case."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> Ran:
        self._monkeypatch.setattr(sys, "argv", ["etude", *map(str, words)])
        self._capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        captured = self._capsys.readouterr()
        return Ran(int(code or 0), captured.out, captured.err)


@pytest.fixture
def etude_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Etude:
    return Etude(monkeypatch, capsys)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """Configs of a tiny run in `tmp_path/run`, of which nothing exists."""
    return write_configs(tmp_path)


def file_of(configs: Path, command: str) -> Path:
    return configs / f"{command.split()[0]}.toml"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_key_is_told_with_the_nearest_one(etude_: Etude, configs: Path, command: str) -> None:
    etude_(*command.split(), file_of(configs, command), "-o", "rum=3").refused("rum: unknown key; did you mean run?")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_config_is_told(etude_: Etude, tmp_path: Path, command: str) -> None:
    etude_(*command.split(), tmp_path / "none.toml").refused("none.toml: no such config file; start from one of")


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["rl"], ["rl", "--nonsense", "x"], ["corpus", "nonsense"], ["report"], ["rl", "x.toml", "y.toml"]],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told(etude_: Etude, words: list[str]) -> None:
    etude_(*words).refused("etude --help")


def test_the_help_is_shown_for_want_of_a_command(etude_: Etude) -> None:
    ran = etude_()
    assert (ran.code, ran.err) == (2, "")
    assert "Usage: etude" in ran.out


def test_a_missing_corpus_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    etude_("pretrain", configs / "pretrain.toml").refused("tokenizer", "etude corpus build")
    assert not (tmp_path / "run" / "pretrain" / "bulk").exists()


def test_a_missing_model_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    etude_("rl", configs / "rl.toml").refused("run/pretrain/sft: no model to start from; run `etude pretrain` first")
    etude_("eval", configs / "eval.toml").refused("nothing to evaluate", "run `etude pretrain` first")
    etude_("report", tmp_path / "none").refused("no such run folder")
    assert not (tmp_path / "run").exists()


def test_a_broken_model_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    model = tmp_path / "run" / "pretrain" / "sft"
    model.mkdir(parents=True)
    etude_("eval", configs / "eval.toml").refused(f"{model}: no model here (config.json is missing)")
    save_tiny_model(model)
    (model / "model.safetensors").write_bytes(b"torn")
    etude_("eval", configs / "eval.toml").refused(f"{model}: broken checkpoint", "delete it and run its stage again")
    assert list((tmp_path / "run" / "eval").glob("*.json")) == []


def test_a_broken_checkpoint_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    assert etude_("corpus", "build", configs / "corpus.toml").code == 0
    state = tmp_path / "run" / "pretrain" / "bulk.pt"
    state.parent.mkdir()
    state.write_bytes(b"torn")
    etude_("pretrain", configs / "pretrain.toml").refused(f"{state}: broken checkpoint", "delete it")
    assert state.read_bytes() == b"torn"
    assert not (tmp_path / "run" / "pretrain" / "bulk").exists()


def test_a_broken_result_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "pretrain" / "sft").mkdir(parents=True)
    result = tmp_path / "run" / "eval" / "sft.json"
    result.parent.mkdir()
    result.write_text('{"name": "sft"')
    etude_("eval", configs / "eval.toml").refused(f"{result}: not a result", "delete it to measure again")


def save_tiny_model(folder: Path) -> None:
    source = KataSource(KatasConfig(), Split.TRAIN)
    tokenizer = Tokenizer.train([source.kata(index).prompt for index in range(20)], 512)
    model = build_model(tiny_config("deepseek_v3", max_positions=320), tokenizer.vocab_size, 0)
    save_model(model, folder, tokenizer.save)


def test_a_machine_without_namespaces_is_told_with_what_to_do(
    etude_: Etude, configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(tmp_path / "run" / "pretrain" / "sft")
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(root, "bwrap_path", lambda: refusing)
    etude_("eval", configs / "eval.toml").refused(
        "machines: this computer does not let processes be isolated (bwrap: No permissions", "allow user namespaces"
    )
    assert list((tmp_path / "run" / "eval").glob("*.json")) == []
    monkeypatch.setattr(root, "bwrap_path", lambda: tmp_path / "not there")
    etude_("eval", configs / "eval.toml").refused("machines: bubblewrap does not start here")


@contextlib.contextmanager
def disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of this size at `folder`; skips the test where that is not allowed."""
    folder.mkdir()
    size = f"size={kilobytes}k"
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder]).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_told_and_the_same_command_goes_on(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    run, full = tmp_path / "run", "the disk is full; free some space and run the same command again"
    with disk(run, 40):
        etude_("corpus", "build", configs / "corpus.toml").refused(full)
        assert [path.name for path in run.iterdir()] == []
        subprocess.run(["mount", "-o", "remount,size=400k", run], check=True)
        assert etude_("corpus", "build", configs / "corpus.toml").code == 0
        etude_("pretrain", configs / "pretrain.toml").refused(full)  # while a checkpoint is written
        assert not (run / "pretrain" / "bulk").exists()
        assert not [path for path in (run / "pretrain").iterdir() if path.name.startswith(".")]
        subprocess.run(["mount", "-o", "remount,size=20m", run], check=True)
        assert etude_("pretrain", configs / "pretrain.toml").code == 0
        assert (run / "pretrain" / "sft" / "config.json").is_file()


def test_a_disk_that_fills_up_while_a_file_is_synced_is_told(
    etude_: Etude, configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    etude_("corpus", "build", configs / "corpus.toml").refused("the disk is full")
    assert [path.name for path in (tmp_path / "run").iterdir()] == []


def test_a_run_folder_that_cannot_be_written_is_told(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    etude_("corpus", "build", configs / "corpus.toml").refused("choose another run folder")


RAISED = {
    "user": (UserError("RUN: no model"), "etude: RUN: no model"),
    "infrastructure": (InfraError("the engine is gone"), "etude: the engine is gone"),
}


@pytest.mark.parametrize(("error", "line"), RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_of_any_stage_is_one_line(
    etude_: Etude, configs: Path, monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, line: str
) -> None:
    def stage(job: Config) -> None:
        raise error

    name = "build_corpus_stage" if command == "corpus build" else f"{command}_stage"
    monkeypatch.setattr(etude.runtime, name, stage)
    ran = etude_(*command.split(), file_of(configs, command))
    assert (ran.code, ran.err) == (2, line + "\n")


def test_wrong_weights_are_told_with_what_to_do(
    etude_: Etude, configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an actor raises it: wrapped by Ray, with a traceback of the other process as its message."""
    save_tiny_model(tmp_path / "run" / "pretrain" / "sft")
    cause = WeightsError("blob 00ff: its bytes have another hash")

    async def run(job: RLJob) -> None:
        raise RayTaskError("start", "Traceback ...\nof many\nlines", cause).as_instanceof_cause()

    monkeypatch.setattr(rl_job, "_run", run)
    monkeypatch.setattr("ray.init", lambda **_: None)
    etude_("rl", configs / "rl.toml").refused(
        "rl/chain: blob 00ff: its bytes have another hash; ", "delete this folder"
    )


def test_a_bug_keeps_its_traceback(etude_: Etude, configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(job: Config) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(etude.runtime, "rl_stage", stage)
    with pytest.raises(KeyError):
        etude_("rl", configs / "rl.toml")


@pytest.mark.parametrize(("command", "job"), COMMANDS.items(), ids=COMMANDS)
def test_what_a_dry_run_prints_loads_again(
    etude_: Etude, tmp_path: Path, command: str, job: type[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = file_of(QUICKSTART, command)
    overrides = ["-o", "run=elsewhere/x", "-o", "katas.seed=7"]
    ran = etude_(*command.split(), given, *overrides, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    printed = tmp_path / "printed.toml"
    printed.write_text(ran.out)
    assert load_config(job, printed) == load_config(job, given, overrides[1::2])
    assert [path.name for path in tmp_path.iterdir()] == ["printed.toml"]  # nothing was started


def test_an_interrupt_says_how_to_go_on(etude_: Etude, configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(job: Config) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(etude.runtime, "rl_stage", stage)
    ran = etude_("rl", configs / "rl.toml")
    assert ran.code == 130
    assert ran.err.strip() == "stopped; run the same command again to go on from the last checkpoint"


def test_an_interrupt_in_the_middle_of_training_is_no_traceback(etude_: Etude, configs: Path, tmp_path: Path) -> None:
    assert etude_("corpus", "build", configs / "corpus.toml").code == 0
    command = [sys.executable, "-c", "from etude.cli import main; main()", "pretrain", str(configs / "pretrain.toml")]
    command += ["-o", "pretrain.bulk.tokens=100_000_000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    metrics = tmp_path / "run" / "pretrain" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == "stopped; run the same command again to go on from the last checkpoint"


def test_help_needs_no_heavy_imports() -> None:
    """Every page of help comes from a process that never loaded torch, ray or the rooms behind them."""
    script = """
import sys
from etude.cli import main
pages = ["", "corpus", "corpus build", "pretrain", "rl", "eval", "report", "quickstart"]
for page in pages:
    sys.argv = ["etude", *page.split(), "--help"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, page
heavy = {"torch", "ray", "transformers", "pyarrow", "duckdb", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: etude") == 8
    for command in ("corpus", "pretrain", "rl", "eval", "report", "quickstart"):
        assert command in done.stdout
