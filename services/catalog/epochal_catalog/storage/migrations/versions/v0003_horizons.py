"""A segment's horizon and marks, and the number of the record that has them; older segments have none."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("segments", sa.Column("horizon", sa.JSON))
    op.add_column("segments", sa.Column("record_number", sa.BigInteger, nullable=False, server_default="-1"))
    op.add_column("segments", sa.Column("marks", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    for column in ("marks", "record_number", "horizon"):
        op.drop_column("segments", column)
