"""Readers of whole epochs over HTTP in simulated streams with relays: the same checks as for all other readers."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.protocol.test_simulation import CHUNK, DURABLE, MANY, RELAYED, check_tried
from tests.seeds import fresh_seed
from tests.simulation import simulate

FRESH, FIXED = 6, 12
OVER_HTTP: dict[str, Any] = {"relays": 2, "relay_faults": 0.3, "subscribers": 1, "web_readers": 5, "crash_rate": 0.3}
"""A relay whose HTTP side ends now and then, with publishers that lose what they have in memory."""
TRIED = ("from the ring", "overtaken", "read history", "follows the ring", "came back", "feeds ended", "notices")


@pytest.mark.rule("E15", "E16", "E17", "E18", "F18")
def test_readers_over_http_keep_every_rule() -> None:
    check_tried([simulate(seed, **OVER_HTTP) for seed in range(FIXED)], *TRIED)


@pytest.mark.rule("E15", "E16", "E17", "E18", "F18")
def test_readers_over_http_keep_every_rule_with_fresh_seeds() -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + FRESH - 1} with {OVER_HTTP}")
    for seed in range(base, base + FRESH):
        simulate(seed, **OVER_HTTP)


@pytest.mark.long
@pytest.mark.rule("E15", "E16", "E17", "E18", "F18")
def test_readers_over_http_keep_every_rule_with_many_fresh_seeds() -> None:
    base = fresh_seed(2**40)
    print(f"seeds {base} to {base + MANY // 4 - 1}")
    seeds = range(base, base + MANY // 4)
    among_others = {**RELAYED, "web_readers": 4}
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        reports = list(pool.map(partial(simulate, **OVER_HTTP), seeds, chunksize=CHUNK))
        reports += pool.map(partial(simulate, **among_others), seeds, chunksize=CHUNK)
        reports += pool.map(partial(simulate, **{**among_others, **DURABLE}), seeds, chunksize=CHUNK)
    check_tried(reports, *TRIED)
