"""Amounts as they are written in a manifest: `256Mi` of memory, `500m` of a processor, `30s` of time.

The notations are those of Kubernetes, so that the same file works with `epochal apply` and `kubectl apply`.
"""

import re

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS = {"": 1, **_DECIMAL, **_BINARY}
_BYTES = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?([A-Za-z]{0,2})", re.ASCII)

_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?([A-Za-z]{0,2})", re.ASCII)
_THOUSANDTHS = {"m": 1, **{unit: 1000 * size for unit, size in (*_UNITS.items(), ("E", 10**18), ("Ei", 2**60))}}

_MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:([0-9]{1,15})h)?(?:([0-9]{1,15})m)?(?:([0-9]{1,15})s)?(?:([0-9]{1,15})ms)?", re.ASCII)


def parse_bytes(text: str) -> int:
    """The bytes that `text` means; raises ValueError with the correct form.

    >>> parse_bytes("1Gi"), parse_bytes("1.5k"), parse_bytes("512")
    (1073741824, 1500, 512)
    """
    match = _BYTES.fullmatch(text)
    if match is None or match[3] not in _UNITS:
        raise ValueError("is not a quantity; write a number of bytes with a unit, e.g. 256Mi, 1Gi, 500M")
    fraction = match[2] or ""
    scale: int = 10 ** len(fraction)
    number, rest = divmod(int(match[1] + fraction) * _UNITS[match[3]], scale)
    if rest:
        raise ValueError("is not a whole number of bytes; e.g. 256Mi, 1Gi, 500M")
    return number


def format_bytes(number: int) -> str:
    """The shortest exact binary notation.

    >>> format_bytes(1073741824), format_bytes(1500)
    ('1Gi', '1500')
    """
    for unit, size in reversed(_BINARY.items()):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def same_amount(one: str, other: str) -> bool:
    """Whether two amounts of a resource are equal. Kubernetes rounds up to thousandths and changes the notation.

    >>> same_amount("1000m", "1"), same_amount("1.5Gi", "1536Mi"), same_amount("1Gi", "1G")
    (True, True, False)
    """
    if one == other:
        return True
    parsed = thousandths(one)
    return parsed is not None and parsed == thousandths(other)


def thousandths(amount: str) -> int | None:
    """An amount in thousandths of its unit, rounded up; None if `amount` has another form."""
    match = _AMOUNT.fullmatch(amount)
    if match is None or match[3] not in _THOUSANDTHS:
        return None
    fraction = match[2] or ""
    scale: int = 10 ** len(fraction)
    return -(-int(match[1] + fraction) * _THOUSANDTHS[match[3]] // scale)


def parse_duration(text: str) -> float:
    """The seconds that `text` means, exact to the millisecond; raises ValueError with the correct form.

    >>> parse_duration("24h"), parse_duration("500ms"), parse_duration("1m30s")
    (86400.0, 0.5, 90.0)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError("is not a duration; write a whole number with a unit (h, m, s or ms), e.g. 30s, 24h, 500ms")
    parts = zip(match.groups(), _MILLISECONDS.values(), strict=True)
    return sum(int(number) * size for number, size in parts if number) / 1000


def format_duration(seconds: float) -> str:
    """The notation with the largest unit that is exact.

    >>> format_duration(86400.0), format_duration(90.0), format_duration(0.5)
    ('24h', '90s', '500ms')
    """
    milliseconds = round(seconds * 1000)
    for unit, size in _MILLISECONDS.items():
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return "0s"
