"""Whether proxies tell what they see: silence of the telemetry is an event, never evidence against an engine."""

from collections.abc import Iterator, Mapping

from xds_server.decide.change import Change, ChangeKind, Subject
from xds_server.traffic import STALE_S, PoolTraffic


def heard(traffic: Mapping[str, PoolTraffic], now_s: float) -> Mapping[Subject, bool]:
    """For every pool and proxy that ever told something: whether it still does."""
    newest: dict[Subject, float] = {}
    for name, pool in traffic.items():
        if pool.heard_at_s > 0:
            newest[Subject(pool=name)] = pool.heard_at_s
        for node, proxy in pool.proxies.items():
            subject, at_s = Subject(proxy=node), max(proxy.heard_at_s, proxy.load_at_s or 0.0)
            if at_s > 0:
                newest[subject] = max(newest.get(subject, 0.0), at_s)
                # A pool that is asked nothing has nothing to tell; its proxies' load reports say that they listen.
                newest[Subject(pool=name)] = max(newest.get(Subject(pool=name), 0.0), at_s)
    return {subject: now_s - at_s <= STALE_S for subject, at_s in newest.items()}


def hearing_changes(before: Mapping[Subject, bool], now: Mapping[Subject, bool]) -> Iterator[Change]:
    """Who fell silent, and who is heard again; who is heard for the first time is no news."""
    for subject, is_heard in now.items():
        was = before.get(subject, True)
        if was is is_heard:
            continue
        whose = f"proxy {subject.proxy}" if subject.proxy else "any proxy"
        yield Change(
            kind=ChangeKind.TELEMETRY,
            subject=subject,
            before="lost" if is_heard else "heard",
            after="heard" if is_heard else "lost",
            reason=f"telemetry of {whose} is back" if is_heard else f"no telemetry of {whose} for {STALE_S:g} s",
            returns="" if is_heard else "with the next access log or load report",
            alarm=not is_heard,
        )
