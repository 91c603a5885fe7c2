"""Redacts text and JSON that leaves the site.

Removed: values with secret-sounding names, header values, tokens and passwords in URLs, texts that look like keys
or tokens, and label values. It errs on the side of too much: a fault is found in the shape, not in the values.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

GONE: Final = "[redacted]"

_SECRET_NAME: Final = re.compile(
    r"(?i)(authori[sz]ation|bearer|passw|secret|token(?!s?_|s?per|izer)|api[-_]?key|cookie|credential|private|signature)"
)
_NOT_SECRET: Final = re.compile(
    r"(?i)(tokens?_?per|first_?token|time_?to|per_?output_?token|tokens$|_tokens|tokenizer)"
)
_VALUES_GONE: Final = frozenset(
    {
        "headers",
        "labels",
        "annotations",
        "env",
        # Envoy's own names: engine labels, added headers.
        "filter_metadata",
        "request_headers_to_add",
        "response_headers_to_add",
    }
)
_NAMING: Final = frozenset({"key", "name"})
_VALUED: Final = frozenset({"value", "raw_value"})
_USERINFO: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@\"']+@")
_QUERY: Final = re.compile(r"(?i)([?&;](?:[\w.-]*(?:key|token|secret|passw|sig|auth)[\w.-]*)=)[^&\s\"'#]+")
_TOKENS: Final = re.compile(
    r"(?i:bearer|basic)\s+[\w.~+/=-]{6,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|\b(?:sk|pk|hf|ghp|gho|github_pat|glpat|xox[abp]|AKIA)[-_]?[A-Za-z0-9][\w-]{10,}"
    r"|-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)",
    re.DOTALL,
)
_ASSIGNED: Final = re.compile(
    r"(?im)([\w.-]*"
    r"(?:passw|secret|api[-_]?key|authorization|credential|cookie)[\w.-]*[\"']?\s*[:=]\s*).+$"
)

_WORD: Final = re.compile(
    # HF_TOKEN=x, pw: x; not numbers, such as time_per_output_token: 0.05.
    r"(?i)(\b(?:\w+[-_])?(?:token|pwd?)[\"']?\s*[:=]\s*[\"']?)(?![\d.e+-]+(?:\s|$))[\w.~+/=-]{6,}"
)
_FLAG: Final = re.compile(r"(?i)(--[\w-]*(?:key|token|passw[\w-]*|secret)[= ])\S+")


def text(said: str) -> str:
    """Text without anything that looks like a secret."""
    said = _USERINFO.sub(rf"\1{GONE}@", said)
    said = _QUERY.sub(rf"\1{GONE}", said)
    said = _FLAG.sub(rf"\1{GONE}", _TOKENS.sub(GONE, said))
    said = _WORD.sub(rf"\1{GONE}", said)
    return _ASSIGNED.sub(rf"\1{GONE}", said)


def data(value: Any, name: str = "") -> Any:
    """JSON without secrets, in the same shape."""
    if _secret(name) and not isinstance(value, Mapping | list | tuple) and value not in (None, "", True, False):
        return GONE
    if isinstance(value, Mapping):
        whole = name in _VALUES_GONE
        if not whole and _named_secret(value, name):
            return {str(key): one if key in _NAMING else _emptied(one) for key, one in value.items()}
        return {str(key): _emptied(one) if whole else data(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_header(one) if name in _VALUES_GONE else data(one, name) for one in value]
    return text(value) if isinstance(value, str) else value


def _named_secret(value: Mapping[Any, Any], name: str) -> bool:
    """Whether it is a name-value pair to redact: of a header, or with a secret-sounding name."""
    if not _VALUED & value.keys():
        return False
    return name == "header" or any(isinstance(said := value.get(key), str) and _secret(said) for key in _NAMING)


def _secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def _header(one: Any) -> Any:
    """A header matcher: keep its name, remove its value."""
    if not isinstance(one, Mapping):
        return _emptied(one)
    return {str(key): one[key] if key == "name" else _emptied(one[key]) for key in one}


def _emptied(value: Any) -> Any:
    """The same shape without content."""
    match value:
        case Mapping():
            return {str(key): _emptied(one) for key, one in value.items()}
        case list() | tuple():
            return [_emptied(one) for one in value]
        case bool() | None:
            return value
    return GONE
