"""Prints the help of a command that has an argument and an option."""

import typer
from typer.testing import CliRunner

app = typer.Typer()


@app.command()
def greet(name: str, times: int = typer.Option(1, help="How often.")) -> None:
    for _ in range(times):
        print("hello", name)


found = CliRunner().invoke(app, ["--help"])
if found.exception and not isinstance(found.exception, SystemExit):
    raise found.exception
assert found.exit_code == 0, found.output
