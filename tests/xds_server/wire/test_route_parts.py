"""Encoded routes are taken apart and put together without decoding any."""

import pytest
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration

from tests.golden.golden_case import CASES, golden_case
from xds_server.model.type_urls import ROUTE
from xds_server.publish.part_isolation import PartChoice, with_choice
from xds_server.reconcile.assembler import Assembler
from xds_server.wire.route_parts import RouteFrame


@pytest.mark.parametrize("name", CASES)
def test_route_parts_are_the_whole_configuration(name: str) -> None:
    assembler = Assembler()
    for item in golden_case(name).resources:
        made = assembler.resource(item)
        assert (made.parts is not None) is (item.type_url == ROUTE)
        if made.parts is None:
            continue
        frame = RouteFrame(*made.parts.frame)
        assert frame.filled(part.value for part in made.parts.parts) == made.value


@pytest.mark.parametrize("name", CASES)
def test_each_route_can_be_replaced_by_its_reply(name: str) -> None:
    assembler = Assembler()
    for item in golden_case(name).resources:
        made = assembler.resource(item)
        for part in made.parts.parts if made.parts else ():
            replaced = with_choice(made, PartChoice(refused=frozenset({part.content})), (), ())
            assert replaced is not None
            [host] = RouteConfiguration.parse(replaced.value).virtual_hosts
            names = [route.name for route in host.routes]
            # Routes of the frame come last: refusals of malformed headers, and the last one of every port.
            own = [one for one in names if one.split("/")[0] == part.name]
            assert own == [f"{part.name}/held-back"]
            assert all(
                one.startswith(("invalid-", "missing-", "no_route")) for one in names[names.index(own[0]) + 1 :]
            )
            assert host.request_body_buffer_limit
