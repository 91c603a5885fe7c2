"""Verdicts as one HTML file that needs nothing else: no network, no script, no other file.

``view`` works an experiment out, ``requests``, ``fleet``, ``shares`` and ``outages`` draw its figures as
values of ``drawing``, ``report_page`` puts everything into its order, and the template says it in HTML. Names and
texts come from files and from the wire: the template escapes all of them.
"""

from collections.abc import Collection, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.report.html.report_page import SIGNS, report_page
from chaos.report.html.svg_chart import WIDTH, number


def html_report(verdicts: Sequence[ExperimentVerdict], beside: Collection[str] = ()) -> str:
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
    return environment.get_template("page.html").render(
        page=report_page(verdicts, beside), width=WIDTH, signs=SIGNS
    )
