"""Where the policies of this server come from, by what it was told."""

from policies.engine_tls import SecretError
from xds_server.config import ServeConfig
from xds_server.offers.feed import Feed, FilesFeed
from xds_server.sources.files import PolicyFiles


def feed(config: ServeConfig, secret_error: SecretError) -> Feed:
    """The feed from files, or from a cluster, where ``secret_error`` judges what single objects name."""
    if config.kubernetes:
        # Who serves from files needs nothing of it.
        from xds_server.running.in_cluster import ClusterFeed  # noqa: PLC0415

        return ClusterFeed(config, secret_error)
    return FilesFeed(PolicyFiles(config.policies, settle_s=config.settle_s, poll_s=config.poll_s))
