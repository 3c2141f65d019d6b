"""Relays, which are listed while they renew."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "relays",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("uid", sa.Text, sa.ForeignKey("streams.uid", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("addresses", sa.JSON, nullable=False),
        sa.Column("segments", sa.JSON, nullable=False),
        sa.Column("upstream", sa.Text, nullable=False),
        sa.Column("capacity", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("path", sa.JSON, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
    )
    op.create_index("ix_relays_uid", "relays", ["uid"])


def downgrade() -> None:
    op.drop_table("relays")
