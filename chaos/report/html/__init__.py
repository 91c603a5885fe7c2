"""Verdict report as one self-contained HTML file: no network, no script.

``experiment_view`` computes the series, ``*_figure(s)`` build charts from ``svg_chart`` values, ``report_page``
orders the page, and the template renders it. Names and texts come from files and the network; the template escapes
them.
"""

from collections.abc import Collection, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.report.html.report_page import SIGNS, report_page
from chaos.report.html.svg_chart import WIDTH, number


def html_report(verdicts: Sequence[ExperimentVerdict], baselines: Collection[str] = ()) -> str:
    """Render the report, with the subjects of one scenario side by side.

    The overall verdict ignores ``baselines``, the subjects shown for comparison.
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
        page=report_page(verdicts, baselines), width=WIDTH, signs=SIGNS
    )
