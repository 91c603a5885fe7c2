"""Explanations behind ``switchgear why``."""

from xds_server.admin.views.context import ViewContext, subject_named
from xds_server.admin.views.why_engine import why_engine
from xds_server.admin.views.why_pool import why_pool, why_zone
from xds_server.admin.views.why_tenant import PREFIX, why_tenant
from xds_server.admin_api.status_types import Explanation
from xds_server.model.fleet import EngineId


def why(name: str, scene: ViewContext) -> Explanation:
    """Explain the subject with this name; ``UnknownNameError`` if it matches none or several."""
    if name.startswith(PREFIX):
        return why_tenant(name.removeprefix(PREFIX), scene)
    subject = subject_named(name, scene)
    if subject.engine:
        return why_engine(EngineId(subject.pool, subject.engine), scene)
    if subject.pool:
        return why_pool(subject.pool, scene)
    return why_zone(subject.zone, scene)
