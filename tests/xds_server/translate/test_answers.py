"""What callers are told is what their page says."""

import re
from pathlib import Path

from policies.route import ModelRoute
from xds_server.translate.listeners import REASONS, TIMEOUT
from xds_server.translate.refusals import maintenance, outside, too_long
from xds_server.translate.scripts import FILTER

PAGE = (Path(__file__).parents[3] / "docs/answers.md").read_text()
ROW = re.compile(r"^\| `([a-z-]+)` \| (\d+) \| (\d*) ?\|", re.MULTILINE)


def test_the_page_names_every_reason_and_how_long_to_wait() -> None:
    route = ModelRoute.model_validate(
        {"metadata": {"name": "r"}, "spec": {"listener": {"port": 1}, "pools": [{"pool": "p"}]}}
    )
    told = {(reason, retry_after or "") for _, reason, retry_after in REASONS} | {("no-route", ""), (TIMEOUT, "")}
    for refusing in (maintenance(route, "m"), outside(route), *too_long(route, 1)):
        fields = refusing.typed_per_filter_config[FILTER].unpack().filter_context.fields
        told.add((fields["reason"].string_value, fields["retry_after"].string_value))
    assert {(reason, retry_after) for reason, _, retry_after in ROW.findall(PAGE)} == told
