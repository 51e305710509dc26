"""Migrations of the database: one Alembic revision for each schema, named by its number."""
