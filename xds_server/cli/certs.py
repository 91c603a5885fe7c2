"""``switchgear certs dev``: a throw-away certificate authority for labs."""

from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from policies.quantity import format_duration, parse_duration

_LONGEST_S: Final = 90 * 86_400.0


def _lasts(text: str) -> timedelta:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not 60 <= seconds <= _LONGEST_S:
        raise click.BadParameter("a lab's certificates last at least 1m and at most 2160h")
    return timedelta(seconds=seconds)


@click.group(name="certs")
def command() -> None:
    """Certificates: for labs only. In production they come from your mesh, cert-manager or SPIRE."""


@command.command(name="dev")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--lasts", type=_lasts, metavar="DURATION", default="24h", show_default=True, help="Until they end.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="DNS name or IP that all of them prove beside localhost; may be given more than once.",
)
def dev(folder: Path, lasts: timedelta, names: tuple[str, ...]) -> int:
    """Make an authority in FOLDER, and certificates for a control plane, a proxy, an agent and an operator.

    With an authority there already, new certificates of the same: that is a rotation.
    """
    from xds_server.auth import lab_ca  # noqa: PLC0415 - cryptography, only when it is asked for

    everybody = [
        lab_ca.LabCertificate(name=one.name, path=one.path, names=(*one.names, *names))
        for one in lab_ca.LAB_CERTIFICATES
    ]
    try:
        lab_ca.make_certificates(folder, everybody, lasts=lasts)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.ClickException(f"{folder}: {error}; remove the folder to begin anew") from error
    for one in everybody:
        click.echo(f"{folder / one.name}.crt  spiffe://{lab_ca.TRUST_DOMAIN}/{one.path}")
    trusted = folder / lab_ca.AUTHORITY
    click.echo(f"trust {trusted}.crt; all of it lasts {format_duration(lasts.total_seconds())}", err=True)
    return 0
