"""When connections are counted, which are reset, and that their streams end first."""

from collections.abc import Callable, Mapping

from xds_server.auth.connection_watcher import (
    COUNT_EACH_BYTES,
    ConnectionWatcher,
    CrowdedConnection,
    Kernel,
)
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.auth.tcp_connections import TcpConnection
from xds_server.auth.unfinished_messages import UnfinishedMessages
from xds_server.xds import StreamErrorKind

PORT = 18000


class System:
    """A kernel whose counts a test sets, and an event loop that runs what it is given at once."""

    def __init__(self, most_of_host: int = 100) -> None:
        self.now_s = 0.0
        self.memory_bytes = 100 * 2**20
        self.received: dict[str, int] = {}
        self.events: list[object] = []
        self.counted = 0
        self.guard = MemoryGuard(
            memory_bytes=lambda: 0,
            unfinished=UnfinishedMessages(max_bytes_of_host=1_000_000),
            reached=ReachedLimits(),
        )
        kernel = Kernel(
            connections=self._connections,
            reset=lambda descriptor, port, peer: self.events.append(("reset", descriptor, port, peer)),
            memory_bytes=lambda: self.memory_bytes,
            descriptors=lambda: range(len(self.received)),
        )
        self._watcher = ConnectionWatcher(
            self.guard,
            PORT,
            most_of_host=most_of_host,
            on_crowded=self.events.extend,
            kernel=kernel,
            clock=lambda: self.now_s,
        )

    def stream(self, connection: str, host: str = "host") -> object:
        return self.guard.enter(
            host, connection=connection, proven=False, end=lambda flaw: self.events.append(("ended", flaw))
        )

    def check(self, after_s: float = 0.0) -> list[object]:
        """What happens in a check after this time."""
        self.now_s += after_s
        self.events.clear()
        self.guard.check(self.now_s)
        self._watcher.check(self._post)
        return list(self.events)

    def _post(self, function: Callable[..., object], *values: object) -> None:
        function(*values)

    def _connections(self, port: int) -> Mapping[str, TcpConnection]:
        assert port == PORT
        self.counted += 1
        names = enumerate(self.received, start=10)
        return {name: TcpConnection(self.received[name], 0, number) for number, name in names}


def test_connections_are_counted_when_memory_has_grown_and_now_and_then() -> None:
    system = System()
    assert (system.check(), system.counted) == ([], 1)
    for _ in range(50):
        system.check(0.05)
    assert system.counted == 1
    system.memory_bytes += COUNT_EACH_BYTES
    system.check(0.05)
    assert system.counted == 2
    system.check(10.0)
    assert system.counted == 3


def test_streams_end_before_their_connection_is_reset() -> None:
    system = System()
    system.stream("ipv4:10.0.0.1:1")
    system.received = {"ipv4:10.0.0.2:2": 500, "ipv4:10.0.0.1:1": 2_000_000}
    assert system.check() == [("ended", StreamErrorKind.MEMORY), ("reset", 11, PORT, "ipv4:10.0.0.1:1")]


def test_message_that_does_not_end_ends_its_connection_but_not_while_the_loop_stands_still() -> None:
    system = System()
    system.stream("ipv4:10.0.0.1:1")
    system.received = {"ipv4:10.0.0.1:1": 200_000}
    for _ in range(3):
        assert system.check(10.0) == []
    system.guard.checked_at_s -= 100
    system.now_s += 100
    system._watcher.check(system._post)
    for _ in range(4):
        assert system.check(10.0) == []
    assert system.check(10.0) == [("ended", StreamErrorKind.SILENT), ("reset", 10, PORT, "ipv4:10.0.0.1:1")]


def test_newest_connections_of_a_host_beyond_its_limit_are_reset_those_without_streams_first() -> None:
    system = System(most_of_host=2)
    names = [f"ipv4:10.0.0.1:{port}" for port in range(1, 4)]
    system.received = dict.fromkeys(names[:2], 100)
    assert system.check() == []
    system.received |= {names[2]: 100, "ipv4:10.0.0.2:9": 100}
    system.stream(names[2], "10.0.0.1")
    system.stream(names[0], "10.0.0.1")
    assert system.check(1.0) == [
        CrowdedConnection(names[1], "10.0.0.1", 2),
        ("reset", 11, PORT, names[1]),
    ]


def test_connections_of_proven_identities_count_apart() -> None:
    system = System(most_of_host=2)
    names = [f"ipv4:10.0.0.1:{port}" for port in range(1, 5)]
    system.received = dict.fromkeys(names, 100)
    for number, name in enumerate(names):
        system.stream(name, f"10.0.0.1 spiffe://lab/{number % 2}")
    assert system.check() == []
