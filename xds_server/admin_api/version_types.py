"""Policy versions on the admin port: history, changes, and the canary."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRequest:
    """Policy texts to apply, by file name. ``dry_run``: validate only.

    ``canary_percent`` above 0: a share of proxies gets them first, for ``for_s`` seconds. ``yes_if_unknown``:
    continue despite too little traffic for a result. ``slo_percent``: share of canary requests that must succeed,
    regardless of other proxies. ``expect``: refuse unless this version (number or digest prefix) is served.
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
    """Version to roll back to; 0: the previous one. ``expect`` as in ``ApplyRequest``."""

    version: int = 0
    by: str = ""
    reason: str = ""
    expect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """One version without its texts; ``serving``: it is in force. ``files``: number of texts."""

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

    ``kept``: they survive a restart. ``damaged``: unreadable files. ``failure``: why the latest version is not on
    disk. ``stands``: number of the applied version that replaces the files, 0 while the files are served.
    """

    versions: tuple[VersionStatus, ...]
    kept: bool
    stands: int = 0
    damaged: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedVersion:
    """The version served before; ``how``: e.g. ``applied by ann``."""

    number: int
    digest: str
    by: str
    how: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStatus:
    """Result of a change: ``served``, ``judged`` (dry run), ``canary`` (started); with a reason ``held``,
    ``failed``, ``superseded`` (by another change) or ``pending`` (timed out waiting).

    ``version`` is 0 if there is none; ``replaced``: the version served before, if known.
    """

    state: str
    digest: str
    version: int = 0
    reason: str = ""
    replaced: ReplacedVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStatus:
    """The running or latest canary. ``state``: ``none``, ``running``, ``served`` or ``rolled-back``.

    ``proxies``: node ids in the canary; ``connected``: how many of them are connected. ``word``: result so far
    (``good``, ``bad``, ``unknown``), with ``reasons``. ``ended_s``: seconds since its end.
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
    """Texts of a version; ``number`` is 0 for served texts that are not a stored version."""

    number: int
    digest: str
    texts: Mapping[str, str] = field(default_factory=dict)
