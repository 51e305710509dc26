"""Creates the tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), primary_key=True, nullable=False),
        sa.Column("value", sa.String(), nullable=False),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.String(), primary_key=True, nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("name", "digest", "status")),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("finished_at", _MOMENT),
        sa.Column("exclude_newer", _MOMENT),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("version", "host", "username")),
        sa.Column("matrix_path", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("grid", sa.JSON(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.JSON()),
        sa.Column("matrix_text", sa.Text(), nullable=False),
        sa.Column("fresh", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index("ix_studies_created_at", "studies", ["created_at"])
    op.create_index("ix_studies_name_digest", "studies", ["name", "digest"])
    op.create_table(
        "locks",
        sa.Column("content_hash", sa.String(), primary_key=True, nullable=False),
        sa.Column("python", sa.String(), nullable=False),
        sa.Column("platform", sa.String(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
    op.create_table(
        "packages",
        sa.Column("lock_hash", sa.String(), sa.ForeignKey("locks.content_hash"), primary_key=True),
        sa.Column("manager", sa.String(), primary_key=True, nullable=False),
        sa.Column("name", sa.String(), primary_key=True, nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("version", "build", "url", "sha256")),
    )
    op.create_index("ix_packages_name_version", "packages", ["name", "version"])
    op.create_table(
        "combinations",
        sa.Column("id", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("study_id", sa.String(), sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("lock_hash", sa.String(), sa.ForeignKey("locks.content_hash")),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.UniqueConstraint("study_id", "key", name="uq_combinations_study_id_key"),
    )
    op.create_index("ix_combinations_lock_hash", "combinations", ["lock_hash"])
    op.create_table(
        "trials",
        sa.Column("sequence", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False, unique=True),
        sa.Column("study_id", sa.String(), sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("combination_id", sa.Integer(), sa.ForeignKey("combinations.id"), nullable=False),
        sa.Column("lock_hash", sa.String(), sa.ForeignKey("locks.content_hash"), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("evidence", sa.String(), nullable=False),
        sa.Column("returncode", sa.BigInteger()),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("started_at", _MOMENT, nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.Column("duration", sa.Float(), nullable=False),
        sa.Column("killed_by_us", sa.Boolean(), nullable=False),
        sa.Column("hash_seed", sa.BigInteger(), nullable=False),
        sa.Column("copies", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("host", "worker", "gpu")),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.String(), nullable=False, server_default="")
            for name in ("trial_key", "cpu", "gpu_model", "driver")
        ),
    )
    for name, columns in {
        "study_counts": ["study_id", "combination_id", "evidence", "outcome"],
        "combination_evidence": ["combination_id", "evidence"],
        "study_sequence": ["study_id", "sequence"],
        "trial_key": ["trial_key", "cpu"],
        "recorded_at": ["recorded_at"],
        "outcome": ["outcome", "lock_hash", "gpu_model", "study_id"],
        "machine": ["cpu", "gpu_model", "driver", "evidence", "study_id"],
        "host": ["host", "evidence", "study_id"],
        "lock_hash": ["lock_hash"],
    }.items():
        op.create_index(f"ix_trials_{name}", "trials", columns)
    op.create_table(
        "reused",
        sa.Column("study_id", sa.String(), sa.ForeignKey("studies.id"), primary_key=True),
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
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), primary_key=True, nullable=False),
        sa.Column("study_id", sa.String(), sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
    )
    op.create_index("ix_decisions_study_id", "decisions", ["study_id"])
