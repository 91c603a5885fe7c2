"""Local replies match the page for callers."""

import re
from pathlib import Path

from policies.route import ModelRoute
from xds_server.decide.decisions import DeadlineSteps
from xds_server.translate.listeners import (
    BAD_REQUEST_REASON,
    INVALID_TOKEN_REASON,
    LOCAL_REPLY_REASONS,
    LOCAL_REPLY_STATUSES,
    NO_AUTHORIZATION_REASON,
    NO_AUTHORIZATION_RETRY_AFTER,
    NOT_AUTHORIZED_REASON,
)
from xds_server.translate.local_reply_routes import (
    deadline_replies,
    held_back_reply,
    maintenance_reply,
    token_limit_replies,
    unselected_reply,
)
from xds_server.translate.lua_scripts import LUA_FILTER
from xds_server.translate.request_fields import BODY_ENCODING_REASON, REFUSED_BODY_REASON
from xds_server.translate.stated_fields import INVALID_HEADER_REASON, MISSING_HEADER_REASON
from xds_server.translate.tenant_quotas import QUOTA_REASON
from xds_server.translate.tenant_share_limits import SHARE_REASON

PAGE = (Path(__file__).parents[3] / "docs/answers.md").read_text()
ROW = re.compile(r"^\| `([a-z-]+)` \| (\d+) \| (\d*|until the next request) ?\|", re.MULTILINE)


def test_answers_page_lists_every_reason_and_retry_after() -> None:
    route = ModelRoute.model_validate(
        {"metadata": {"name": "r"}, "spec": {"listener": {"port": 1}, "pools": [{"pool": "p"}]}}
    )
    asks = {"listener": {"port": 1}, "pools": [{"pool": "p"}], "match": {"model": "sql"}, "adapter": True}
    with_adapter = ModelRoute.model_validate({"metadata": {"name": "sql"}, "spec": asks})
    stated = {"listener": {"port": 1, "deadline": {"header": "grpc-timeout"}}, "pools": [{"pool": "p"}]}
    with_deadline = ModelRoute.model_validate({"metadata": {"name": "d"}, "spec": stated})
    found = {(reason, retry_after or "") for _, reason, retry_after in LOCAL_REPLY_REASONS} | {
        ("no-route", ""),
        *((reason, "") for reason in (REFUSED_BODY_REASON, BODY_ENCODING_REASON)),
        *((reason, "") for reason in (INVALID_HEADER_REASON, MISSING_HEADER_REASON)),
        (BAD_REQUEST_REASON, ""),
        (INVALID_TOKEN_REASON, ""),
        (NOT_AUTHORIZED_REASON, ""),
        (NO_AUTHORIZATION_REASON, NO_AUTHORIZATION_RETRY_AFTER),
        (QUOTA_REASON, "until the next request"),
        (SHARE_REASON, "1"),
        *((reason, "") for _, reason in LOCAL_REPLY_STATUSES),
    }
    for refusing in (
        maintenance_reply(route, "m"),
        unselected_reply(route),
        unselected_reply(with_adapter),
        held_back_reply(route),
        *token_limit_replies(route, 1),
        *deadline_replies(with_deadline, DeadlineSteps(base_s=1.0), streaming=False),
    ):
        fields = refusing.typed_per_filter_config[LUA_FILTER].unpack().filter_context.fields
        found.add((fields["reason"].string_value, fields["retry_after"].string_value))
    assert {(reason, retry_after) for reason, _, retry_after in ROW.findall(PAGE)} == found
