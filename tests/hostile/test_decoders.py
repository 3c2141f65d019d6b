"""Every decoder against a corpus of interesting bytes, and against whatever can be made of sound ones.

Only typed errors may come out, in bounded memory, and with or without msgpack's C extension alike.
"""

import gc
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # no package: a subprocess and the fuzzer import it by its plain name as well
from verdicts import CORPUS, DECODERS, decoder_of, verdict  # noqa: E402  # the line above

MIB = 2**20
FILES = sorted(CORPUS.iterdir())
SOUND = {name: [path.read_bytes() for path in FILES if path.name.startswith(f"{name}-")] for name in DECODERS}
FUZZ_SECONDS = 60
ACCEPTED = ("padding", "nothing.bin", "nested-15", "in-a-later-field", "utf16", "lone-surrogate", "its-prefix",
            "answer-detail", "answer-problems")  # fmt: skip
"""What is odd, and allowed all the same."""


def test_every_decoder_has_a_corpus():
    assert {decoder_of(path) for path in FILES} == set(DECODERS)
    assert len(FILES) >= 90


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_corpus_is_refused_unless_it_is_sound(path):
    expected = path.stem.endswith("sound") or "-sound-" in path.stem or any(odd in path.name for odd in ACCEPTED)
    assert (verdict(decoder_of(path), path.read_bytes()) == "sound") == expected


def test_msgpack_without_its_extension_gives_the_same_verdicts():
    """PyPy, and platforms without a wheel, use the fallback: it has other limits of its own."""
    names = [str(path) for path in FILES if path.suffix == ".bin"]

    def verdicts(**environment: str) -> list[str]:
        command = [sys.executable, str(HERE / "verdicts.py"), *names]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
        return done.stdout.splitlines()

    extension, fallback = verdicts(), verdicts(MSGPACK_PUREPYTHON="1")
    assert (extension[0], fallback[0]) == ("extension", "fallback")
    assert extension[1:] == fallback[1:]


def peak_of(act: Callable[[], Any]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix in (".bin", ".json", ".txt")], ids=lambda p: p.name
)
def test_nothing_of_a_claimed_size_is_allocated(path):
    data = path.read_bytes()
    assert peak_of(lambda: verdict(decoder_of(path), data)) < 4 * MIB + 30 * len(
        data
    )  # load: one thread, and the interpreter itself counts


def test_a_mebibyte_of_empty_maps_is_refused_before_it_is_unpacked():
    data = b"\x00\x04" + (MIB - 6).to_bytes(4, "big") + b"\x80" * (MIB - 6)
    assert peak_of(lambda: verdict("wire", data)) < 2 * MIB  # load: one thread, and the interpreter itself counts


def test_a_payload_of_empty_maps_takes_no_more_than_the_documented_multiple():
    """What an application unpacks is its own decision; docs/hostile-input.md says what it can cost."""
    payload = msgpack.packb([[{}] * 1000] * 300)
    peak = peak_of(lambda: verdict("msgpack", payload))
    print(f"{len(payload) / MIB:.2f} MiB of empty maps take {peak / MIB:.0f} MiB: {peak / len(payload):.0f} times")
    assert peak < 100 * len(payload)  # load: one thread, and the interpreter itself counts
    assert peak_of(lambda: verdict("bytes", payload)) < 100 * len(payload)  # load: as above


def test_a_bomb_of_arrow_is_not_unpacked():
    import pyarrow as pa

    data = (CORPUS / "arrow-64-mib-in-a-few-kb.arrows").read_bytes()
    assert len(data) < 4096
    before = pa.default_memory_pool().max_memory()
    assert verdict("arrow", data) == "remote_protocol"
    assert pa.default_memory_pool().max_memory() - before < MIB


# ---- mutation ----

Mutation = Callable[[bytearray, random.Random, list[bytes]], bytearray]
CLAIMS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 1100,
]
ODDITIES = [b"\xc1", b"\xc0", b"\xc2", b"\xc3", b"\xca\x7f\xc0\x00\x00", b"\xcb\x7f\xf8" + bytes(6),
            b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xd6\xff" + bytes(4), b"\xc7\x00\x01",
            b"\xa2\xff\xfe", b"\x80", b"\x90",
            b"null", b"NaN", b"-1", b"1e999", b'"\\ud800"', b"[" * 2000, b"{}", b"\x00FRAME\x00"]  # fmt: skip


def _flip(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _truncate(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _extend(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    return data + rng.randbytes(rng.randrange(1, 40))


def _splice(data: bytearray, rng: random.Random, others: list[bytes]) -> bytearray:
    other, at = rng.choice(others), rng.randrange(len(data) + 1)
    start = rng.randrange(len(other) + 1)
    return data[:at] + other[start : start + rng.randrange(200)] + data[at:]


def _odd(data: bytearray, rng: random.Random, _: list[bytes]) -> bytearray:
    at, odd = rng.randrange(len(data) + 1), rng.choice(CLAIMS + ODDITIES)
    return data[:at] + odd + data[at + rng.choice([0, 1, len(odd)]) :]


MUTATIONS: list[Mutation] = [_flip, _flip, _truncate, _extend, _splice, _odd]


def mutated(name: str, seed: int) -> bytes:
    """Something made of the decoder's corpus, by up to four mutations; the same for the same seed."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(SOUND[name]))
    for _ in range(rng.randrange(1, 5)):
        data = rng.choice(MUTATIONS)(data, rng, SOUND[name])
    return bytes(data)


@given(st.sampled_from(sorted(set(DECODERS) - {"shape"})), st.integers(0, 2**32))
def test_whatever_is_made_of_the_corpus_only_typed_errors_come_out(name, seed):
    verdict(name, mutated(name, seed))


FIELDS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4),
        st.binary(max_size=17), st.just({}), st.sampled_from(["close", "finish"]),
    ),
    lambda part: st.lists(part, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.integers(0, 45), st.lists(FIELDS, max_size=11), st.booleans())
def test_whatever_is_in_the_fields_only_typed_errors_come_out(kind, fields, with_payload):
    header = msgpack.packb([kind, *fields])
    payload = b"x" * with_payload
    verdict("wire", len(header).to_bytes(2, "big") + len(payload).to_bytes(4, "big") + header + payload)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(st.text(max_size=5), part, max_size=3)),
    max_leaves=10,
)


@given(st.sampled_from(["cursor", "time", "json", "answer", "registration"]), JSON)
def test_any_json_is_a_typed_error_or_sound(name, value):
    verdict(name, json.dumps(value).encode())


# ---- long ----


@pytest.mark.long
def test_a_hundred_thousand_mutants():
    for seed in range(100_000):
        name = sorted(set(DECODERS) - {"shape"})[seed % (len(DECODERS) - 1)]
        try:
            verdict(name, mutated(name, seed))
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {mutated(name, seed)!r}") from error


@pytest.mark.long
def test_a_guided_fuzzer_finds_nothing_either(tmp_path):
    """Atheris follows coverage; a crash leaves its input behind, which then belongs into the corpus."""
    pytest.importorskip("atheris")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    index = {name: number for number, name in enumerate(sorted(DECODERS))}
    for path in FILES:
        (seeds / path.name).write_bytes(bytes([index[decoder_of(path)]]) + path.read_bytes()[:4096])
    command = [sys.executable, str(HERE / "fuzz.py"), f"-max_total_time={FUZZ_SECONDS}", "-timeout=10",
               "-rss_limit_mb=2048", "-max_len=4097", "-print_final_stats=1", str(seeds)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=FUZZ_SECONDS + 120)
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(("crash", "oom", "timeout", "slow"))]
    assert done.returncode == 0, f"{left}\n{done.stderr[-4000:]}"
    print([line for line in done.stderr.splitlines() if "stat::number_of_executed_units" in line])
