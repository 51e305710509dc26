"""The Alembic revisions; a released one is never changed."""
