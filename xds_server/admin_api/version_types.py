"""Policy versions on the admin port: history, changes, and the canary."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """Policy texts to serve, by file name. ``dry_run``: only judge them.

    ``canary_percent`` above 0: a share of the proxies tries them for ``for_s`` seconds before the rest.
    ``yes_if_unknown``: continue where there was too little traffic to tell. ``slo_percent``: the share of requests
    to those proxies that must succeed, whatever the other proxies see. ``expect``: refuse unless this version is
    served now; its number, or a prefix of its digest.
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
    """All known versions, oldest first.

    ``kept``: they survive a restart. ``damaged`` are files that could not be read; ``failure`` says why the
    newest version is not on disk. ``stands``: the number of the applied version that replaces the files, 0 where
    the files are served.
    """

    versions: tuple[VersionStatus, ...]
    kept: bool
    stands: int = 0
    damaged: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedVersion:
    """The version that was served before; ``how`` is ``ann applied it``."""

    number: int
    digest: str
    by: str
    how: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStatus:
    """The outcome of a change: ``served``, ``judged`` (a dry run), ``canary`` (it began); with a reason ``held``,
    ``failed``, ``superseded`` (another change came first) or ``pending`` (it took too long to wait for).

    ``version`` is 0 where there is none; ``replaced`` is what was served before, where known.
    """

    state: str
    digest: str
    version: int = 0
    reason: str = ""
    replaced: ReplacedVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStatus:
    """The canary that runs or ran last. ``state``: ``none``, ``running``, ``served`` or ``rolled-back``.

    ``proxies`` are the node ids that try the policies, ``connected`` how many of them are connected. ``word`` is
    the result so far (``good``, ``bad``, ``unknown``), with ``reasons``. ``ended_s`` is how long ago it ended.
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
    """The texts of a version; ``number`` is 0 for what is served and belongs to no version."""

    number: int
    digest: str
    texts: Mapping[str, str] = field(default_factory=dict)
