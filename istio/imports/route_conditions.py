"""Conditions of other tools' routes as a ModelRoute's match.

An unsupported condition is never dropped, because its route would then match more requests: ``RouteConditions``
collects them, and the route is omitted.
"""

import re
from dataclasses import dataclass, field

from istio.imports.policy_draft import PolicyDraft, SourcedValue, Tree
from istio.imports.source_documents import SourceNode

_QUERY = r"(\?.*)?"


@dataclass(slots=True)
class RouteConditions:
    """Conditions of a route: a path prefix, headers, fields of the body; and conditions a ModelRoute lacks.

    ``port`` is its listener's port, if set.
    """

    prefix: SourcedValue | None = None
    headers: list[Tree] = field(default_factory=list)
    model: SourcedValue | None = None
    stream: SourcedValue | None = None
    port: SourcedValue | None = None
    wrong: list[tuple[SourceNode, str]] = field(default_factory=list)

    def refuse(self, node: SourceNode, why: str) -> None:
        """Record an unsupported condition."""
        self.wrong.append((node, why))

    def header(self, name: str, node: SourceNode, **condition: str | bool) -> None:
        """A further condition on a header, a pseudo-header of HTTP/2 included."""
        block: dict[str, Tree] = {"name": SourcedValue(value=name, node=node)}
        block |= {key: SourcedValue(value=value) for key, value in condition.items()}
        self.headers.append(block)

    def authority(self, node: SourceNode, hosts: tuple[str, ...]) -> None:
        """The request is for one of these hosts, at whatever port; ``*.`` stands for any names in front."""
        if not hosts or "*" in hosts:
            return
        names = "|".join(f".+{_escaped(one[1:])}" if one.startswith("*") else _escaped(one) for one in hosts)
        self.header(":authority", node, regex=f"(?:{names})(?::[0-9]+)?")

    @property
    def rank(self) -> tuple[int, int, bool, bool]:
        """What decides which of two routes is tried first: the smaller one is."""
        path = -len(str(self.prefix.value)) if self.prefix else -1
        return (path, -len(self.headers), self.model is None, self.stream is None)

    def path(self, node: SourceNode, *, exact: str = "", prefix: str = "", regex: str = "") -> None:
        """A condition on the path, which does not hold its query."""
        if prefix:
            before = self.prefix
            if before is not None and not prefix.startswith(str(before.value)):
                if str(before.value).startswith(prefix):
                    return
                self.refuse(node, f"no path can start with both {before.value} and {prefix}")
                return
            self.prefix = SourcedValue(value=prefix, node=node)
        elif exact:
            # The pseudo-header holds the query as well.
            self.prefix = self.prefix or SourcedValue(value=exact.partition("?")[0], node=node)
            self.header(":path", node, regex=f"{_escaped(exact)}{_QUERY}")
        else:
            self.header(":path", node, regex=f"(?:{regex}){_QUERY}")

    def into(self, route: PolicyDraft, node: SourceNode) -> bool:
        """Write the conditions to ``route``; False and listed if one is unsupported."""
        if self.wrong:
            for one, why in self.wrong:
                one.refuse(why)
            node.refuse("route omitted: without this condition it would match more requests")
            return False
        match: dict[str, Tree] = {}
        if self.prefix is not None:
            match["pathPrefix"] = self.prefix
        if self.headers:
            match["headers"] = self.headers
        if self.model is not None:
            match["model"] = self.model
        if self.stream is not None:
            match["stream"] = self.stream
        if match:
            route.spec["match"] = match
        return True


def _escaped(path: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", path)
