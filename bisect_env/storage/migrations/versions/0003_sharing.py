"""Trial keys and machines, claims, trials of other studies, and logs by their content.

Texts that older releases stored may hold passwords of addresses: they are taken out.
"""

import hashlib
import zlib

import sqlalchemy as sa
from alembic import op

from bisect_env.matrix.secrets import shared_matrix_text, without_credentials, without_passwords

revision = "0003"
down_revision = "0002"

_NAMES = ("stdout", "stderr", "stack")
_BATCH = 500


def upgrade() -> None:
    """Change the tables, then move the logs and clean the texts."""
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("fresh", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("trials") as batch:
        for name in ("trial_key", "cpu", "gpu_model", "driver"):
            batch.add_column(sa.Column(name, sa.String(), nullable=False, server_default=""))
    op.drop_index("ix_trials_combination_id", "trials")
    op.create_index("ix_trials_combination_evidence", "trials", ["combination_id", "evidence"])
    op.create_index("ix_trials_study_sequence", "trials", ["study_id", "sequence"])
    op.create_index("ix_trials_trial_key", "trials", ["trial_key", "cpu"])
    op.create_index("ix_trials_recorded_at", "trials", ["recorded_at"])
    op.create_index("ix_trials_outcome", "trials", ["outcome", "lock_hash", "gpu_model", "study_id"])
    op.create_index("ix_trials_machine", "trials", ["cpu", "gpu_model", "driver", "evidence", "study_id"])
    op.create_index("ix_trials_host", "trials", ["host", "evidence", "study_id"])
    study = sa.ForeignKey("studies.id")
    op.create_table(
        "reused",
        sa.Column("study_id", sa.String(), study, primary_key=True),
        sa.Column("trial_sequence", sa.Integer(), sa.ForeignKey("trials.sequence"), primary_key=True),
        sa.Column("combination_id", sa.Integer(), sa.ForeignKey("combinations.id"), nullable=False),
        sa.Column("evidence", sa.String(), nullable=False),
    )
    op.create_index("ix_reused_trial_sequence", "reused", ["trial_sequence"])
    op.create_index("ix_reused_combination_id", "reused", ["combination_id"])
    op.create_table(
        "claims",
        sa.Column("trial_id", sa.String(), primary_key=True, nullable=False),
        sa.Column("study_id", sa.String(), sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("combination_id", sa.Integer(), sa.ForeignKey("combinations.id"), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
    for name in ("study_id", "combination_id", "holder"):
        op.create_index(f"ix_claims_{name}", "claims", [name])
    op.create_table(
        "blobs",
        sa.Column("content_hash", sa.String(), primary_key=True, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.BigInteger(), nullable=False),
        sa.Column("collected", sa.Boolean(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
    )
    op.create_table(
        "artefacts",
        sa.Column("trial_sequence", sa.Integer(), sa.ForeignKey("trials.sequence"), primary_key=True),
        sa.Column("name", sa.String(), primary_key=True, nullable=False),
        sa.Column("content_hash", sa.String(), sa.ForeignKey("blobs.content_hash"), nullable=False),
    )
    op.create_index("ix_artefacts_content_hash", "artefacts", ["content_hash"])
    connection = op.get_bind()
    _move_logs(connection)
    op.drop_table("logs")
    _clean(connection, "studies", "id", {"matrix_text": shared_matrix_text, "description": without_passwords})
    _clean(connection, "combinations", "id", {"reason": without_passwords})
    _clean_packages(connection)


def _move_logs(connection: sa.Connection) -> None:
    logs = sa.table("logs", *(sa.column(name) for name in ("trial_sequence", *_NAMES)))
    names = ("content_hash", "size", "stored", "collected", "data")
    blobs = sa.table("blobs", *(sa.column(name) for name in names))
    columns = ("trial_sequence", "name", "content_hash")
    artefacts = sa.table("artefacts", *(sa.column(name) for name in columns))
    known: set[str] = set()
    last = -1
    while True:
        query = sa.select(logs).where(logs.c.trial_sequence > last).order_by(logs.c.trial_sequence)
        rows = connection.execute(query.limit(_BATCH)).all()
        if not rows:
            return
        new, links = [], []
        for row in rows:
            for name in _NAMES:
                text = zlib.decompress(getattr(row, name)).decode("utf-8", "surrogatepass")
                content = without_passwords(text).encode("utf-8", "surrogatepass")
                if not content:
                    continue
                digest = hashlib.sha256(content).hexdigest()
                links.append({"trial_sequence": row.trial_sequence, "name": name, "content_hash": digest})
                if digest not in known:
                    known.add(digest)
                    data = zlib.compress(content, 6)
                    values = (digest, len(content), len(data), False, data)
                    new.append(dict(zip(names, values, strict=True)))
        if new:
            connection.execute(sa.insert(blobs), new)
        if links:
            connection.execute(sa.insert(artefacts), links)
        last = rows[-1].trial_sequence


def _clean(connection: sa.Connection, name: str, key: str, columns: dict[str, object]) -> None:
    table = sa.table(name, *(sa.column(column) for column in (key, *columns)))
    for row in connection.execute(sa.select(table)).all():
        changed = {c: f(getattr(row, c)) for c, f in columns.items()}  # type: ignore[operator]
        changed = {c: text for c, text in changed.items() if text != getattr(row, c)}
        if changed:
            connection.execute(sa.update(table).where(table.c[key] == getattr(row, key)).values(**changed))


def _clean_packages(connection: sa.Connection) -> None:
    packages = sa.table("packages", sa.column("url"))
    for (url,) in connection.execute(sa.select(packages.c.url).distinct()).all():
        if (public := without_credentials(url)) != url:
            connection.execute(sa.update(packages).where(packages.c.url == url).values(url=public))
