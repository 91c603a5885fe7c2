"""What an operator says about who may connect: one document, read as strictly as policies are."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from policies.document import API_VERSION, Metadata, Spec, documented_field
from policies.quantity import Name, Zone

PATTERN: Final = r"^[^\s*]*(\*[^\s*]*)*$|^[^\s*]+(\*[^\s*]*)*/\*\*$"
Pattern = Annotated[str, Field(min_length=1, max_length=2048, pattern=PATTERN)]
"""Text in which ``*`` stands for anything but a slash, and ``/**`` at the end for everything below."""


class AdminRole(StrEnum):
    """What may be done on the admin port."""

    READ = "read"
    WRITE = "write"  # read, and give orders


class ProxyRule(Spec):
    """Proxies with one sort of certificate, and what they may be and see."""

    identity: Pattern = documented_field(
        ..., "URI (SPIFFE) or DNS name in the proxy's certificate; * stands for anything but a slash."
    )
    nodes: tuple[Pattern, ...] = documented_field(
        ("*",), "Node ids that such a proxy may connect as.", min_length=1, max_length=1000
    )
    pools: tuple[Name, ...] = documented_field((), "Pools that it may see; all when absent.", max_length=10_000)
    zones: tuple[Zone, ...] = documented_field(
        (), "Zones that it may say it is in; all when absent.", max_length=1000
    )


class AdminRule(Spec):
    """Somebody who may use the admin port: by certificate, or by a token from a file."""

    identity: Pattern | None = documented_field(None, "URI or DNS name in the client's certificate.")
    token_file: Path | None = documented_field(
        None,
        "File with a bearer token, read again when it changes; relative to this document.",
        why="a token on a command line is in everybody's list of processes",
    )
    name: str = documented_field("", "Name in the audit log; what proved it when absent.", max_length=253)
    role: AdminRole = documented_field(AdminRole.READ, "read, or write: read, and give orders.")

    @model_validator(mode="after")
    def _one_proof(self) -> "AdminRule":
        if (self.identity is None) == (self.token_file is None):
            msg = "say identity or tokenFile, one of them"
            raise ValueError(msg)
        return self


class AccessSpec(Spec):
    """Who may connect where."""

    proxies: tuple[ProxyRule, ...] = documented_field(
        (), "Proxies that may connect to the xDS port; the first rule that fits counts.", max_length=10_000
    )
    admin: tuple[AdminRule, ...] = documented_field(
        (), "Who may use the admin port; the first rule that fits counts.", max_length=10_000
    )
    summaries: tuple[Pattern, ...] = documented_field(
        (), "URIs or DNS names in certificates that may watch --summary; nobody when absent.", max_length=1000
    )


class Access(Spec):
    """Who may connect, and what they may see and do."""

    api_version: Literal["switchgear.dev/v1alpha1"] = Field(API_VERSION, description="Version of the document.")
    kind: Literal["Access"] = Field("Access", description="Kind of the document.")
    metadata: Metadata = documented_field(..., "Name and labels.")
    spec: AccessSpec = documented_field(..., "The rules.")
