"""What proxies were given last, so that only what is new is given to them again."""

from xds_server.metrics import Metrics
from xds_server.pipeline import REFERENCE_VIEW, Built
from xds_server.reconcile.considering import count_resources
from xds_server.reconcile.neighbours import Proxies
from xds_server.snapshot import Snapshot, same_layers, unless_equal
from xds_server.translate.view import View


class Publishing:
    """Gives proxies what was built, unless they have it; ``served`` is what each view has."""

    def __init__(self, proxies: Proxies, metrics: Metrics) -> None:
        self._proxies = proxies
        self._metrics = metrics
        self._built: Built | None = None
        self.served: dict[View, Snapshot] = {}

    def publish(self, built: Built) -> bool:
        """Give it to them; whether there was anything new in it."""
        # The same snapshot again would be a push that has to be compared on every stream to find nothing in it.
        fresh = {view: unless_equal(self.served.get(view), made) for view, made in built.snapshots.items()}
        same = fresh.keys() == self.served.keys() and all(fresh[view] is self.served[view] for view in fresh)
        if same and same_layers({} if self._built is None else self._built.own, built.own):
            return False
        self._proxies.publish(fresh, built.own)
        # After it: what could not be given to them is due again in the next round.
        self.served, self._built = fresh, built
        count_resources(self._metrics, fresh[REFERENCE_VIEW])
        return True
