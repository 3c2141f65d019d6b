"""Reports the accounts that spend too much within an hour, each once, wherever the program is killed.

    python examples/fraud/detect.py STREAM DATABASE

The alerts of an hour and the position behind it are one transaction of SQLite: after `kill -9` both are there, or
neither. An hour is read once no payment of it can come any more, so no total is ever corrected.
"""

import asyncio
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import epochal

MOST = 1000
"""What an account may spend within an hour."""
TABLES = """
create table if not exists alerts (hour integer, account text, spent integer, primary key (hour, account));
create table if not exists position (id integer primary key check (id = 1), cursor text not null);
"""


def alerts(epoch: epochal.Epoch) -> Iterator[tuple[int, str, int]]:
    """(hour, account, what it spent) of those that spent too much."""
    spent = Counter[str]()
    for payment in epoch.records():
        spent[payment["account"]] += payment["amount"]
    return ((epoch.time, account, amount) for account, amount in sorted(spent.items()) if amount > MOST)


async def detect(stream: str, database: str) -> None:
    """Go on where the database says, until the stream is complete."""
    with closing(sqlite3.connect(database)) as db:
        db.executescript(TABLES)
        known = db.execute("select cursor from position").fetchone()
        since = epochal.Cursor.from_json(known[0]) if known else "start"
        async with epochal.connect() as client, client.subscribe(stream, since=since) as subscription:
            async for epoch in subscription.epochs():
                with db:  # one transaction
                    if isinstance(epoch, epochal.Epoch):  # else it was aborted: none of its payments took place
                        db.executemany("insert into alerts values (?, ?, ?)", alerts(epoch))
                    db.execute("insert or replace into position values (1, ?)", (subscription.cursor().to_json(),))
                print(epoch.time, flush=True)


if __name__ == "__main__":
    asyncio.run(detect(sys.argv[1], sys.argv[2]))
