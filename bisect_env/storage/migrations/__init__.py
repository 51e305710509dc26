"""How an older database becomes a newer one: one Alembic revision a schema, named by its number."""
