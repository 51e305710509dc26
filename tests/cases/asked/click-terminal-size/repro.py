import click

print(click.get_terminal_size())
