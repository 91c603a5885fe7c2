"""Why the API refuses a request, as Kubernetes' ``Status``.

Source: Kubernetes API conventions, "Response Status Kind"; apimachinery ``pkg/api/errors``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster_double.json_object import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is wrong with an object; ``reason`` is of ``metav1.CauseType``."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        """As the whole message of a refusal lists it."""
        return f"{self.field}: {self.message}" if self.field else self.message


class RefusedError(Exception):
    """A request that is answered by a ``Status`` that says Failure."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        kind: str = "",
        group: str = "",
        name: str = "",
        causes: Sequence[Cause] = (),
        retry_after_s: int | None = None,
        more: str = "",
    ) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = {key: text for key, text in (("name", name), ("group", group), ("kind", kind)) if text}
        self.causes = tuple(causes)
        self.retry_after_s = retry_after_s
        self.more = more

    def status(self) -> Object:
        """The ``Status`` itself."""
        details: Object = dict(self.details)
        if self.causes:
            details["causes"] = [
                {"reason": one.reason, "message": one.message, "field": one.field} for one in self.causes
            ]
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.more} if self.more else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": self.code,
        }


def bad_request(message: str) -> RefusedError:
    """What was asked cannot be understood."""
    return RefusedError(400, "BadRequest", message)


def expired(message: str, *, more: str = "") -> RefusedError:
    """The version asked for is no longer kept."""
    return RefusedError(410, "Expired", message, more=more)
