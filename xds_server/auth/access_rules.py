"""Model of the access rules (kind Access), validated as strictly as policies."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from policies.document import API_VERSION, ApiVersion, Metadata, Spec, documented_field
from policies.quantity import Name, Zone

PATTERN: Final = r"^[^\s*]*(\*[^\s*]*)*$|^[^\s*]+(\*[^\s*]*)*/\*\*$"
Pattern = Annotated[str, Field(min_length=1, max_length=2048, pattern=PATTERN)]
"""Pattern: ``*`` matches anything but a slash, a final ``/**`` everything below."""


class AdminRole(StrEnum):
    """Rights on the admin port."""

    READ = "read"
    WRITE = "write"  # read and make changes


class ProxyRule(Spec):
    """Identity of proxies, and what they may connect as and see."""

    identity: Pattern = documented_field(
        ..., "URI (SPIFFE) or DNS name in the proxy's certificate; * matches anything but a slash."
    )
    nodes: tuple[Pattern, ...] = documented_field(
        ("*",), "Node ids allowed for this proxy.", min_length=1, max_length=1000
    )
    pools: tuple[Name, ...] = documented_field((), "Pools visible to it; default: all.", max_length=10_000)
    zones: tuple[Zone, ...] = documented_field((), "Zones it may declare; default: all.", max_length=1000)


class AdminRule(Spec):
    """A user of the admin port, identified by certificate or by a token from a file."""

    identity: Pattern | None = documented_field(None, "URI or DNS name in the client's certificate.")
    token_file: Path | None = documented_field(
        None,
        "File with a bearer token, relative to this document; reloaded when it changes.",
        why="a token on a command line is visible in process lists",
    )
    name: str = documented_field("", "Name in the audit log; default: the identity.", max_length=253)
    role: AdminRole = documented_field(AdminRole.READ, "read, or write: read and make changes.")

    @model_validator(mode="after")
    def _one_proof(self) -> "AdminRule":
        if (self.identity is None) == (self.token_file is None):
            msg = "set either identity or tokenFile"
            raise ValueError(msg)
        return self


class AccessSpec(Spec):
    """Access rules of all ports."""

    proxies: tuple[ProxyRule, ...] = documented_field(
        (), "Proxies that may connect to the xDS port; the first matching rule counts.", max_length=10_000
    )
    admin: tuple[AdminRule, ...] = documented_field(
        (), "Users of the admin port; the first matching rule counts.", max_length=10_000
    )
    summaries: tuple[Pattern, ...] = documented_field(
        (), "URIs or DNS names in certificates that may watch --summary; default: none.", max_length=1000
    )


class Access(Spec):
    """Rules for connections, visibility and changes."""

    api_version: ApiVersion = Field(API_VERSION, description="Version of the document.")
    kind: Literal["Access"] = Field("Access", description="Kind of the document.")
    metadata: Metadata = documented_field(..., "Name and labels.")
    spec: AccessSpec = documented_field(..., "The rules.")
