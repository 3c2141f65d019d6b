"""Whether a session is its writer's first, which its number no longer shows; and which session was released."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("first", sa.Boolean, nullable=False, server_default="0"))
    sessions = sa.table("sessions", sa.column("number", sa.BigInteger), sa.column("first", sa.Boolean))
    op.add_column("sessions", sa.Column("released", sa.BigInteger))
    op.execute(sessions.update().values(first=sessions.c.number == 1))


def downgrade() -> None:
    for column in ("released", "first"):
        op.drop_column("sessions", column)
