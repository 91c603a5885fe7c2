"""Verdicts as one HTML file that needs nothing else: no network, no script, no other file.

``view`` works an experiment out, ``requests``, ``fleet``, ``shares`` and ``outages`` draw its figures as
values of ``drawing``, ``page`` puts everything into its order, and the template says it in HTML. Names and texts
come from files and from the wire: the template escapes all of them.
"""

from collections.abc import Collection, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from chaos.checks.verdict import Verdict
from chaos.report.html.drawing import WIDTH, number
from chaos.report.html.page import SIGNS, page


def html(verdicts: Sequence[Verdict], beside: Collection[str] = ()) -> str:
    """The whole document, for one or several experiments, subjects of one scenario side by side.

    The verdict on top leaves out those subjects that only stand ``beside``, for comparison.
    """
    environment = Environment(
        loader=PackageLoader("chaos.report.html", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html").render(page=page(verdicts, beside), width=WIDTH, signs=SIGNS)
