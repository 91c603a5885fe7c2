"""The header that states which model served, where it is not the one that the caller asked for."""

from typing import Final
from urllib.parse import quote

SERVED_MODEL_HEADER: Final = "x-switchgear-served-model"


def of_an_engine(value: str) -> str:
    """A header value that is empty in local replies: no model served a refusal.

    Characters that a header or Envoy's format cannot hold are percent-encoded.
    """
    text = quote(value, safe="/:@+ ").replace("%", "\\x25")
    return f"%CEL(response.flags == 0 ? '{text}' : '')%"
