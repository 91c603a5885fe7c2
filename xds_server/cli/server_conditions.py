"""Conditions of a running server, for ``status`` and ``doctor``."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from xds_server.admin_api.answers import PoolList, ProblemList
from xds_server.admin_api.endpoints import (
    CANARY,
    CONDITIONS,
    ENGINES,
    HISTORY,
    POLICIES,
    POOLS,
    PROBLEMS,
    PROXIES,
    AdminEndpoint,
)
from xds_server.admin_api.status_types import Condition
from xds_server.cli.admin_client import UnknownPathError, fetch
from xds_server.diagnosis.check_result import of_condition
from xds_server.diagnosis.conditions import ServerState, applied_version, conditions

_T = TypeVar("_T")


def fetch_conditions(admin: str) -> Sequence[Condition]:
    """Conditions of the server, the most severe first; of an older server, from its other answers."""
    with contextlib.suppress(UnknownPathError):
        return fetch(admin, CONDITIONS).value.conditions
    problems = _known(admin, PROBLEMS) or ProblemList()
    return conditions(
        ServerState(
            now_unix_s=time.time(),
            policies=fetch(admin, POLICIES).value,
            proxies=fetch(admin, PROXIES).value.proxies,
            engines=fetch(admin, ENGINES).value.engines,
            pools=(_known(admin, POOLS) or PoolList(pools=())).pools,
            file_problems=problems.troubles,
            rolled_back=problems.rolled_back,
            canary=_known(admin, CANARY),
            applied=applied_version(_known(admin, HISTORY)),
        )
    )


def conditions_document(found: Sequence[Condition]) -> Mapping[str, Any]:
    """Conditions as JSON. ``remarks`` are the same for scripts written for earlier versions; deprecated."""
    return {
        "conditions": [asdict(one) | {"severity": str(one.severity)} for one in found],
        "remarks": [dict(of_condition(one).record()) for one in found],
    }


def _known(admin: str, endpoint: AdminEndpoint[_T]) -> _T | None:
    """The answer; None from a server without this page."""
    with contextlib.suppress(UnknownPathError):
        return fetch(admin, endpoint).value
    return None
