"""What is asked and told of changes on the admin port, as values: its JSON is exactly these."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.findings import PolicyError
from xds_server.rollout.history.policy_version import PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """Texts by name that somebody wants served. ``dry_run``: they are only judged.

    ``canary_percent`` above 0: a share of the proxies tries them for ``for_s`` seconds before the rest;
    ``yes_if_unknown``: they go on also where there was too little traffic to tell. ``slo_percent``: so many of the
    requests to those proxies have to be answered well, however the rest does. ``expect``: only where this version
    is served now, by its number or by how its digest begins.
    """

    texts: dict[str, str]
    by: str = ""
    reason: str = ""
    dry_run: bool = False
    canary_percent: float = 0.0
    for_s: float = 60.0
    yes_if_unknown: bool = False
    slo_percent: float | None = None
    expect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """The version to serve again; 0: the one before the present. ``expect`` as in ``ApplyRequest``."""

    version: int = 0
    by: str = ""
    reason: str = ""
    expect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """One version without its texts; ``serving``: proxies have it. ``files`` is how many texts it has."""

    number: int
    digest: str
    at_unix_s: float
    source: str
    by: str
    reason: str
    restores: int
    files: int
    size_bytes: int
    serving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """All versions that are known, oldest first.

    ``kept``: they outlive the server. ``damaged`` are files that could not be read, ``failure`` says why the
    newest version is not on disk. ``stands``: the number of the applied version that stands in place of the files,
    0 where the files are served.
    """

    versions: tuple[VersionStatus, ...]
    kept: bool
    stands: int = 0
    damaged: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedVersion:
    """The version that was served before another took its place; ``how`` is ``ann applied it``."""

    number: int
    digest: str
    by: str
    how: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStatus:
    """What became of a change: ``served``, ``judged`` (a dry run), ``canary`` (it began); with a reason ``held``,
    ``failed``, ``superseded`` (something else came before it) or ``pending`` (it took too long to wait for).
    ``version`` is 0 where there is none, ``replaced`` what was served before it, where that is known.
    """

    state: str
    digest: str
    version: int = 0
    reason: str = ""
    replaced: ReplacedVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStatus:
    """The canary that runs or ran last. ``state``: ``none``, ``running``, ``served`` or ``rolled-back``.

    ``proxies`` are the node ids that try the policies, ``connected`` how many of them are here; ``word`` is what
    can be said so far (``good``, ``bad``, ``unknown``), with ``reasons``. ``ended_s`` is how long ago it ended.
    """

    state: str
    digest: str = ""
    percent: float = 0.0
    proxies: tuple[str, ...] = ()
    connected: int = 0
    age_s: float = 0.0
    left_s: float = 0.0
    requests: int = 0
    word: str = "unknown"
    reasons: tuple[str, ...] = ()
    by: str = ""
    version: int = 0
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTexts:
    """The texts of a version; ``number`` is 0 for what is served and in no version."""

    number: int
    digest: str
    texts: Mapping[str, str] = field(default_factory=dict)


class RefusedChangeError(Exception):
    """The change is not made; the message says why, and what would help."""


class SupersededError(RefusedChangeError):
    """The change is not made, for something else is served than what it was meant to replace."""


class UnknownVersionError(Exception):
    """There is no such version."""


class UnusableTextsError(Exception):
    """The texts are no policies that could be served, for all of these reasons."""

    def __init__(self, errors: tuple[PolicyError, ...]) -> None:
        super().__init__(f"these policies have {len(errors)} problem{'' if len(errors) == 1 else 's'}")
        self.errors = errors


def version_status(version: PolicyVersion, *, serving: bool) -> VersionStatus:
    """The version as it is told."""
    return VersionStatus(
        number=version.number,
        digest=version.digest,
        at_unix_s=version.at_unix_s,
        source=version.source.value,
        by=version.by,
        reason=version.reason,
        restores=version.restores,
        files=len(version.texts),
        size_bytes=sum(len(text.encode(errors="surrogatepass")) for text in version.texts.values()),
        serving=serving,
    )
