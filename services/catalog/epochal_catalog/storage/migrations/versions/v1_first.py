"""The schema of 0.1.0."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "streams",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("manifest", sa.JSON, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("completed", sa.Text),
        sa.UniqueConstraint("namespace", "name", name="one_live_stream_a_name"),
    )
    op.create_table(
        "segments",
        sa.Column("uid", sa.Text, sa.ForeignKey("streams.uid", ondelete="CASCADE"), primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("lo", sa.Text, nullable=False),
        sa.Column("hi", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("lower", sa.JSON),
        sa.Column("writers", sa.JSON, nullable=False),
        sa.Column("finishing", sa.Boolean, nullable=False),
        sa.Column("finishing_number", sa.BigInteger, nullable=False),
        sa.Column("horizon", sa.JSON),
        sa.Column("record_number", sa.BigInteger, nullable=False),
        sa.Column("marks", sa.JSON, nullable=False),
    )
    op.create_table(
        "registrations",
        sa.Column("publisher", sa.Text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False, unique=True),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("segments", sa.JSON, nullable=False),
        sa.Column("addresses", sa.JSON, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("uid", sa.Text, sa.ForeignKey("streams.uid", ondelete="CASCADE"), primary_key=True),
        sa.Column("writer", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("first", sa.Boolean, nullable=False),
        sa.Column("released", sa.BigInteger),
    )
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
    op.create_table(
        "changes",
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("op", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("object", sa.JSON),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "counters",
        "changes",
        "relays",
        "subscriptions",
        "sessions",
        "registrations",
        "segments",
        "streams",
    ):
        op.drop_table(table)
