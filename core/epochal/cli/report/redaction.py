"""Takes out what may be secret: values by their names, and the parts of texts that look like such values.

It knows names, not secrets: what is written under a harmless name stays. So the archive lists what was taken out, and
its owner is asked to look through it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

REDACTED = "[redacted]"
MAX_DEPTH = 64
"""Levels of a document; deeper ones are left out."""

_NAME = (
    r"pass(?:word|wd|phrase)|secret|token|credential|(?:api|access|private)[-_.]?key"
    r"|authorization|cookie|cursor|signature"
)
_SECRET = re.compile(f"{_NAME}|(?:^|[-_.])auth$", re.IGNORECASE)
_WHOLE = re.compile(r"env|environment|headers?", re.IGNORECASE)
"""Names of which every value is left out, whatever it is called."""

_BEFORE = re.compile(r"[\w.-]{0,64}\Z")
_URL = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>\\]+")
_PAIR = re.compile(  # begins in the middle of a name: a pattern for the part before would be tried at every character
    rf"""(?P<name>(?:{_NAME})[\w.-]{{0,64}})(?P<sign>["']?[ \t]{{0,8}}[:=][ \t]{{0,8}})"""
    r"""(?:"[^"\n]*"|'[^'\n]*'|(?:bearer|basic|digest)[ \t]+[^\s,;]+|[^\s,;&}\])]+)""",
    re.IGNORECASE,
)
_LONE = (
    ("bearer", re.compile(r"\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)),
    ("a web token", re.compile(r"\beyJ[A-Za-z0-9_-]{8,512}\.[A-Za-z0-9_-]{1,4096}\.[A-Za-z0-9_-]+")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}-----)?")),
)


class Redaction:
    """Redacts documents and texts, and remembers where. `found`: the part of the archive and what was taken out."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def document(self, part: str, value: Any) -> Any:
        """A JSON `value` without what may be secret."""
        return self._value(part, value, "")

    def text(self, part: str, text: str) -> str:
        """A text, such as a log or metrics, without what may be secret."""
        clean, names = redact_text(text)
        for name, number in sorted(names.items()):
            self.found.append((part, f"{name} ({number} times)" if number > 1 else name))
        return clean

    def _value(self, part: str, value: Any, path: str) -> Any:
        if path.count(".") > MAX_DEPTH:
            return self._hide(part, path.rstrip("."))
        match value:
            case Mapping():
                hidden = set(_secret_fields(value))
                return {
                    key: self._hide(part, f"{path}{key}") if key in hidden else self._value(part, each, f"{path}{key}.")
                    for key, each in value.items()
                }
            case list() | tuple():
                return [self._value(part, each, f"{path}{number}.") for number, each in enumerate(value)]
            case str():
                clean, names = redact_text(value)
                self.found += [(part, f"{path.rstrip('.')}: {name}") for name in sorted(names)]
                return clean
            case _:
                return value

    def _hide(self, part: str, path: str) -> str:
        self.found.append((part, path))
        return REDACTED


def _secret_fields(fields: Mapping[Any, Any]) -> Iterator[Any]:
    """Keys whose values are left out; in `{name: API_TOKEN, value: ...}` that is `value`."""
    for key, value in fields.items():
        if value is not None and (is_secret(str(key)) or _WHOLE.fullmatch(str(key))):
            yield key
    if "value" in fields and any(is_secret(str(fields.get(key))) for key in ("name", "key")):
        yield "value"


def is_secret(name: str) -> bool:
    """Whether the value of a field, variable or parameter of this name may be secret.

    >>> [name for name in ("apiKey", "DB_PASSWORD", "x-auth", "key", "author", "tokens") if is_secret(name)]
    ['apiKey', 'DB_PASSWORD', 'x-auth', 'tokens']
    """
    return _SECRET.search(name) is not None


def redact_text(text: str) -> tuple[str, Counter[str]]:
    """A text without credentials, and the names of what was taken out, with how often.

    >>> redact_text("POST https://me:pw@host/in?key=1 password=x done")[0]
    'POST https://host/in?[redacted] password=[redacted] done'
    """
    found: Counter[str] = Counter()

    def url(match: "re.Match[str]") -> str:
        clean = redact_url(match[0])
        if clean != match[0]:
            found["parts of a URL"] += 1
        return clean

    def pair(match: "re.Match[str]") -> str:
        if match[0].endswith(REDACTED[:-1]):  # done already; the bracket is no part of a value
            return match[0]
        before = _BEFORE.search(match.string, max(match.start() - 64, 0), match.start())
        found[(before[0] if before else "") + match["name"]] += 1
        return match["name"] + match["sign"] + REDACTED

    text = _PAIR.sub(pair, _URL.sub(url, text))
    for name, pattern in _LONE:
        text, number = pattern.subn(REDACTED, text)
        if number:
            found[name] += number
    return text, found


def redact_url(url: str) -> str:
    """A URL without its user, query and fragment.

    >>> redact_url("http://127.0.0.1:8700/v1"), redact_url("https://u:p@h:1/hook#x")
    ('http://127.0.0.1:8700/v1', 'https://h:1/hook?[redacted]')
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return REDACTED
    host = parts.netloc.rpartition("@")[2]
    if host == parts.netloc and not parts.query and not parts.fragment:
        return url
    bare = urlunsplit((parts.scheme, host, parts.path, "", ""))
    return f"{bare}?{REDACTED}" if parts.query or parts.fragment else bare
