"""All commands; each lives in a file of its own and imports what it needs when it is called."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from bisect_env.cli.amplify_command import amplify
from bisect_env.cli.between_command import between
from bisect_env.cli.db_command import db_app
from bisect_env.cli.diagnose_command import diagnose
from bisect_env.cli.diff_command import diff
from bisect_env.cli.doctor_command import doctor
from bisect_env.cli.env_command import env_app
from bisect_env.cli.explain_command import explain
from bisect_env.cli.fetch_command import fetch
from bisect_env.cli.init_command import init
from bisect_env.cli.plan_command import plan
from bisect_env.cli.query_command import query
from bisect_env.cli.report_command import report
from bisect_env.cli.reproduce_command import reproduce
from bisect_env.cli.run_command import run
from bisect_env.cli.schema_command import schema
from bisect_env.cli.serve_command import serve
from bisect_env.cli.shell_command import shell
from bisect_env.cli.trial_command import trial
from bisect_env.cli.trials_command import studies, trials
from bisect_env.cli.verify_command import verify

app = typer.Typer(
    name="bisect-env",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bisect-env {version('bisect-env')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Which combination of versions first breaks a script, and is it a crash or a flake?"""


app.command()(init)
app.command()(doctor)
app.command()(run)
app.command()(between)
app.command()(plan)
app.command()(diagnose)
app.command()(amplify)
app.command()(fetch)
app.command()(report)
app.command()(trial)
app.command()(verify)
app.command()(diff)
app.command()(explain)
app.command()(reproduce)
app.command()(shell)
app.command()(studies)
app.command()(trials)
app.command()(query)
app.command()(serve)
app.command()(schema)
app.add_typer(db_app, name="db")
app.add_typer(env_app, name="env")
