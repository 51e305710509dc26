"""Views for people and a version table for Alembic.

Nothing is done here: every upgrade takes the views away before the tables change and makes them again after.
"""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Nothing: see above."""
