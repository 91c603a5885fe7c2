"""``switchgear certs dev``: make a disposable certificate authority for labs."""

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
        raise click.BadParameter("lab certificates last 1m to 2160h")
    return timedelta(seconds=seconds)


@click.group(name="certs")
def command() -> None:
    """Make disposable certificates for labs; in production use your mesh, cert-manager or SPIRE."""


@command.command(name="dev")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--lasts", type=_lasts, metavar="DURATION", default="24h", show_default=True, help="Lifetime.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="DNS name or IP in all certificates, besides localhost; repeatable.",
)
def dev(folder: Path, lasts: timedelta, names: tuple[str, ...]) -> int:
    """Make a CA in FOLDER, and certificates for a control plane, a proxy, an agent and an operator.

    If FOLDER has a CA, it issues new certificates (a rotation).
    """
    from xds_server.auth import lab_ca  # noqa: PLC0415 - cryptography loads slowly

    certificates = [
        lab_ca.LabCertificate(name=one.name, path=one.path, names=(*one.names, *names))
        for one in lab_ca.LAB_CERTIFICATES
    ]
    try:
        lab_ca.make_certificates(folder, certificates, lasts=lasts)
    except OSError as error:
        raise click.ClickException(f"{error.filename or folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.ClickException(f"{folder}: {error}; remove the folder to start over") from error
    for one in certificates:
        click.echo(f"{folder / one.name}.crt  spiffe://{lab_ca.TRUST_DOMAIN}/{one.path}")
    trusted = folder / lab_ca.AUTHORITY
    click.echo(f"CA: {trusted}.crt; valid for {format_duration(lasts.total_seconds())}", err=True)
    return 0
