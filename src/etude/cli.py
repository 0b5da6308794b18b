"""The `etude` command: parse, call one function, print. Heavy imports happen inside the command that needs them.

Invariant: what the user did wrong is one line on stderr and exit status 2, without a traceback; a bug keeps its own.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from etude.config import Config, load_config, to_toml
from etude.records import InfraError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train your own coding agent: code -> pretraining -> reinforcement learning in sandboxes -> report.\n\n"
    "Start with [bold]etude quickstart[/bold]: the whole loop on two CPU cores in minutes. Then copy "
    "examples/quickstart/*.toml and change what is yours. Every command goes on where it was stopped.",
)
corpus_app = typer.Typer(no_args_is_help=True, help="Source trees to clean, packed token shards.")
app.add_typer(corpus_app, name="corpus")

ConfigFile = Annotated[Path, typer.Argument(help="TOML file; see examples/quickstart for commented ones.")]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Override a key, e.g. -o rl.lr=5e-5.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")]
Configs = Annotated[Path, typer.Option(help="Folder with corpus.toml, pretrain.toml, rl.toml and eval.toml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


C = TypeVar("C", bound=Config)
PASS_AT_1 = "pass@1 on held-out tasks, 95 % intervals"
INTERRUPTED = 130


def main() -> None:
    """Entry point: errors of the user and of the infrastructure become one line."""
    # Threads that wait for each other spin briefly, then sleep. With one other busy process on two cores a training
    # step took 7 times as long with endless spinning, the default; sleeping at once costs 20 % when nobody else is
    # there. Read by OpenMP when torch is first imported, here and in actors.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        status = app(standalone_mode=False)
    except typer.Exit as stop:
        status = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except (UserError, InfraError) as error:
        print(f"etude: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not click's own complaint about the command line
            raise
        if said := error.format_message():  # empty when the help was just shown for want of a command
            print(f"etude: {said}; try `etude --help`", file=sys.stderr)
        sys.exit(2)
    if status == INTERRUPTED:  # how typer ends a command that got a Ctrl-C, by an exception in older versions
        print("\nstopped; run the same command again to go on from the last checkpoint", file=sys.stderr)
    sys.exit(status)


@corpus_app.command("build")
def corpus_build(config: ConfigFile, override: Overrides = None, dry_run: DryRun = False, json: AsJson = False) -> None:
    """Read source trees, drop what should not be learnt, train a tokenizer, pack. Writes RUN/corpus."""
    from etude.config.jobs import CorpusJob

    job = _job(CorpusJob, config, override, dry_run)
    from etude.runtime import build_corpus_stage

    _show("corpus", build_corpus_stage(job).as_table(), json)


@app.command()
def pretrain(config: ConfigFile, override: Overrides = None, dry_run: DryRun = False, json: AsJson = False) -> None:
    """Continue pretraining on RUN/corpus, then imitate demonstrations. Writes RUN/pretrain/{bulk,sft}."""
    from etude.config.jobs import PretrainJob

    job = _job(PretrainJob, config, override, dry_run)
    from etude.runtime import pretrain_stage

    _show("pretrain", {"model": str(pretrain_stage(job))}, json)


@app.command()
def rl(config: ConfigFile, override: Overrides = None, dry_run: DryRun = False, json: AsJson = False) -> None:
    """Asynchronous reinforcement learning from RUN/pretrain/sft. Writes RUN/rl."""
    from etude.config.jobs import RLJob

    job = _job(RLJob, config, override, dry_run)
    from etude.runtime import rl_stage

    _show("rl", {"model": str(rl_stage(job))}, json)


@app.command("eval")
def evaluate(config: ConfigFile, override: Overrides = None, dry_run: DryRun = False, json: AsJson = False) -> None:
    """Measure the run's checkpoints on held-out tasks. Writes RUN/eval."""
    from etude.config.jobs import EvalJob

    job = _job(EvalJob, config, override, dry_run)
    from etude.runtime import eval_stage

    rows = {result.label: _interval(result.pass_at_1) for result in eval_stage(job)}
    _show(PASS_AT_1, rows, json)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder.")], json: AsJson = False) -> None:
    """Write RUN/report.html, or print its numbers."""
    from etude.report import as_json, collect, write_report

    if json:
        print(as_json(collect(run)))
    else:
        print(write_report(run))


@app.command()
def quickstart(configs: Configs = Path("examples/quickstart")) -> None:
    """The whole loop on two CPU cores: corpus build, pretrain, rl, eval, report. Run it again to go on."""
    from etude.report import write_report
    from etude.runtime import quickstart as run_all

    done = run_all(configs)
    _show(PASS_AT_1, {result.label: _interval(result.pass_at_1) for result in done.evaluations}, as_json=False)
    print(f"report: {write_report(done.run)}")


def _job(kind: type[C], config: Path, overrides: list[str] | None, dry_run: bool) -> C:
    """The job that the file and the overrides describe; with --dry-run it is printed and nothing else happens."""
    job = load_config(kind, config, overrides or [])
    if dry_run:
        print(to_toml(job), end="")
        raise typer.Exit
    return job


def _interval(interval: Any) -> str:
    return f"{interval.mean:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def _show(title: str, rows: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(rows, indent=1))
        return
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)
