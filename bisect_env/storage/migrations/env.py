"""Run by Alembic for every command; the caller provides the connection and its transaction."""

from alembic import context

from bisect_env.storage.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # SQLite cannot alter a table: Alembic makes another and copies.
    render_as_batch=True,
)
context.run_migrations()
