"""What a recording keeps of a round. Apart from the recording, which is also read where no server is."""

from collections.abc import Mapping

from xds_server.ledger.recording import Moment
from xds_server.pipeline import Built


def moment_of(built: Built, texts: Mapping[str, str], unix_s: float) -> Moment:
    """What this round was given; ``texts`` are the policies that it served."""
    return Moment(
        now_s=built.inputs.now_s,
        unix_s=unix_s,
        texts=texts,
        fleet=built.inputs.fleet,
        proxies=built.proxies,
        proxies_by_role=built.inputs.proxies_by_role,
        calling_zones=built.calling_zones,
        orders=built.inputs.overrides,
    )
