"""Subscriptions, and the changes that watchers come back for."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("uid", sa.Text, sa.ForeignKey("streams.uid", ondelete="CASCADE"), nullable=False),
        sa.Column("subscriber", sa.Text, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
    )
    op.create_index("ix_subscriptions_uid", "subscriptions", ["uid"])
    op.create_table(
        "changes",
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("op", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("object", sa.JSON),
    )


def downgrade() -> None:
    for table in ("changes", "subscriptions"):
        op.drop_table(table)
