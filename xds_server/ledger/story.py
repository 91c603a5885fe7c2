"""Why something is as it is, in sentences: the answer to ``switchgear why``."""

from xds_server.answers.status import Story
from xds_server.fleet import EngineId
from xds_server.ledger.engine_story import engine_story
from xds_server.ledger.pool_story import pool_story, zone_story
from xds_server.ledger.scene import Scene, meant


def story(name: str, scene: Scene) -> Story:
    """The story of whoever is meant by ``name``; ``UnknownNameError`` where that is nobody or more than one."""
    subject = meant(name, scene)
    if subject.engine:
        return engine_story(EngineId(subject.pool, subject.engine), scene)
    if subject.pool:
        return pool_story(subject.pool, scene)
    return zone_story(subject.zone, scene)
