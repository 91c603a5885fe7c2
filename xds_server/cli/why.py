"""``switchgear why``: the story of an engine, a zone, a pool or a tenant, in sentences."""

from collections.abc import Iterator

import click

from command_line.output_format import DATA, as_data, output_option
from command_line.wrapping import wrapped
from xds_server.admin_api.endpoints import WHY
from xds_server.admin_api.status_types import EventStatus, Explanation
from xds_server.cli.admin_client import fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.diagnosis.event_text import change_text
from xds_server.model.text import age_text


@click.command(name="why", short_help="Explain the current state of an engine, zone, pool or tenant.")
@click.argument(
    "name", metavar="ENGINE|ZONE|POOL|tenant:NAME", shell_complete=complete_names("engines", "zones", "pools")
)
@connection_options
@output_option()
def command(name: str, admin: str, output: str) -> int:
    """Explain the current state of an engine, zone, pool or tenant.

    Shows the state and since when, the evidence, the policy line that decided, what would change it and when, and
    earlier events.

    Name an engine POOL/ENGINE, or ENGINE where the name is unique. pool:NAME, zone:NAME and engine:NAME tell equal
    names apart. tenant:NAME and tenant:PORT/NAME name a tenant.

    Exit code: 0 when healthy, 1 when not (an engine is ejected, draining, unknown or kept in rotation by the
    capacity floor; a pool is full or degraded; requests of a tenant are refused), 2 when there is no such name,
    more than one, or no server answers.
    """
    answer = fetch(admin, WHY, query=[("name", name)])
    story = answer.value
    if output in DATA:
        click.echo(as_data(answer.document | {"code": "" if story.well else "SG209"}, output), nl=False)
    else:
        click.echo(as_text(story))
    return 0 if story.well else 1


def as_text(story: Explanation) -> str:
    """The story, wrapped for a terminal from 40 columns; whole lines on a pipe."""
    return wrapped(printable("\n".join(_lines(story))))


def _lines(story: Explanation) -> Iterator[str]:
    yield story.now
    for sentence in story.because:
        yield f"  {sentence}"
    if story.why_not:
        yield ""
        yield "Why not otherwise:"
        for sentence in story.why_not:
            yield f"  {sentence}"
    if story.ruled_by:
        yield ""
        yield "Ruled by:"
        for rule in story.ruled_by:
            value = f": {rule.value}" if rule.value else ""
            yield f"  {rule.field}{value} ({rule.place})"
    if story.returns:
        until = story.until_in_s
        latest = "" if until is None else f"; evaluated again within {age_text(until)}"
        yield ""
        yield f"Recovers after: {story.returns}{latest}."
    yield ""
    yield "Before:" if story.past else "Before: nothing is remembered."
    for event in story.past:
        yield f"  {event_line(event, whose=story.kind != 'engine')}"


def event_line(event: EventStatus, *, whose: bool = False) -> str:
    """``41s ago: ejected: hung: ...``."""
    subject = f"{event.subject}: " if whose else ""
    times = ""
    if event.times > 1:
        times = f" ({event.times} times in {age_text(event.first_age_s - event.age_s)})"
    return (
        f"{age_text(event.age_s)} ago: {subject}{change_text(event.kind, event.before, event.after)}{times}: "
        f"{event.evidence}"
        f"{failed_requests(event)}"
    )


def failed_requests(event: EventStatus) -> str:
    """`` [failed requests: ...]`` where the event names any; servers of earlier versions name none."""
    return f" [failed requests: {', '.join(event.requests)}]" if event.requests else ""
