"""All commands; each lives in a file of its own and imports what it needs when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from bisect_env import __version__
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
from bisect_env.cli.map_command import map_
from bisect_env.cli.options import Command
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
        typer.echo(f"bisect-env {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Which combination of versions first breaks a script, and is it a crash or a flake?"""


app.command(cls=Command)(init)
app.command(cls=Command)(doctor)
app.command(cls=Command)(run)
app.command("map", cls=Command)(map_)
app.command(cls=Command)(between)
app.command(cls=Command)(plan)
app.command(cls=Command)(diagnose)
app.command(cls=Command)(amplify)
app.command(cls=Command)(fetch)
app.command(cls=Command)(report)
app.command(cls=Command)(trial)
app.command(cls=Command)(verify)
app.command(cls=Command)(diff)
app.command(cls=Command)(explain)
app.command(cls=Command)(reproduce)
app.command(cls=Command)(shell)
app.command(cls=Command)(studies)
app.command(cls=Command)(trials)
app.command(cls=Command)(query)
app.command(cls=Command)(serve)
app.command(cls=Command)(schema)
app.add_typer(db_app, name="db")
app.add_typer(env_app, name="env")
