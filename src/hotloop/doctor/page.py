"""The doctor's report as one page that needs nothing else: verdict, pictures, tables."""

import base64
import html
import io
import math
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from importlib import metadata
from typing import TYPE_CHECKING

from hotloop.doctor.causes import Cause, causes_of
from hotloop.doctor.diagnosis import Diagnosis
from hotloop.doctor.report import (
    TITLES,
    at_limits,
    cells_of,
    machine_line,
    next_step,
    on_shares,
    sentence,
    verdict_line,
)
from hotloop.profiling.show import place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREDICTED, MEASURED, STAGE, OCCASION = "#b9c4ce", "#d6763e", "#4a6076", "#9db4c8"
SHOWN = (0.2, 0.5, 2.0, 5.0, 20.0)
"""Between powers of ten, what an axis names."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:left}td.n,th.n{text-align:right}.box{border:2px solid #4a6076;border-radius:.5rem;padding:.5rem 1rem}"
    "img{max-width:100%}code{background:#f2f2f2;padding:0 .2rem}.dim{color:#777}"
)


def page_of(diagnosis: Diagnosis) -> str:
    """All of it."""
    seen = diagnosis.seen
    causes = causes_of(seen)
    lines = [("verdict", verdict_line(causes)), ("why", sentence(causes)), ("next", next_step(diagnosis))]
    footing = [f"{1 / seen.seconds:,.0f} env steps/s", f"pipeline {seen.pipeline}", f"{seen.rounds} rounds"]
    footing += [f"{name} {value}" for name, value in seen.machine.items()] + seen.notices
    parts = [
        f'<p><img alt="where the time goes" src="data:image/png;base64,{_picture(diagnosis, causes)}"></p>',
        "<h2>Where the time goes</h2>",
        table_of(TITLES, [cells_of(cause) for cause in causes]),
        *(f"<p class=dim>{html.escape(said)}</p>" for said in (on_shares(causes), at_limits(seen)) if said),
        *lines_of_code(causes, "share of the env's time"),
        "<h2>Settings that learn the same</h2>",
        table_of(
            ("setting", "predicted", "measured", ""),
            [
                (tried.remedy.options, f"{tried.remedy.predicted:.2f}x", str(tried.measured or ""), tried.why_not)
                for tried in diagnosis.remedies
            ],
        )
        if diagnosis.remedies
        else "<p>None is predicted to be faster.</p>",
        "<h2>Less work, which learns differently</h2>" if diagnosis.less_work else "",
        table_of(("setting", "predicted"), [(each.options, f"{each.predicted:.2f}x") for each in diagnosis.less_work])
        if diagnosis.less_work
        else "",
        f"<p>machine: {html.escape(machine)}</p>" if (machine := machine_line(diagnosis)) else "",
    ]
    return whole_page(seen.spec.name, lines, parts, footing)


def whole_page(name: str, box: Sequence[tuple[str, str]], parts: Iterable[str], footing: Sequence[str]) -> str:
    """What all reports share: a title, the box, their own parts, and when and with what it was made."""
    made = [*footing, f"hotloop {metadata.version('hotloop')}", f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"]
    lines = "".join(f"<div><b>{title}</b> {html.escape(text)}</div>" for title, text in box)
    body = [f"<h1>{html.escape(name)}</h1><div class=box>{lines}</div>", *parts]
    body.append(f"<p class=dim>{html.escape('; '.join(made))}</p>")
    title, text = html.escape(f"hotloop doctor: {name}"), "\n".join(body)
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n{text}\n"


def lines_of_code(causes: Iterable[Cause], share_of: str) -> list[str]:
    """Those of the user's own code, if there are any."""
    rows = [(place_of(line), f"{line['share']:.0%}", line["text"]) for cause in causes for line in cause.lines]
    if not rows:
        return []
    return ["<h2>Lines of your own code</h2>", table_of(("line", share_of, ""), rows)]


def table_of(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Words to the left, figures to the right."""
    texts = {0, len(titles) - 1}

    def cells(row: Sequence[str], tag: str) -> str:
        made = (f"<{tag}{'' if i in texts else ' class=n'}>{html.escape(cell)}</{tag}>" for i, cell in enumerate(row))
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{cells(titles, 'th')}{''.join(cells(row, 'td') for row in rows)}</table>"


def _picture(diagnosis: Diagnosis, causes: list[Cause]) -> str:
    """Shares of the time, and what was predicted beside what was measured, as a PNG in letters."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    draw_shares(left, causes, diagnosis.seen.stages, "% of an env step's time")
    _gains(right, diagnosis, causes)
    return in_letters(figure)


def in_letters(figure: "Figure") -> str:
    """A picture as a page holds it."""
    import matplotlib.pyplot as plt

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, dpi=120, format="png")
    plt.close(figure)
    return base64.b64encode(written.getvalue()).decode()


def draw_shares(axes: "Axes", causes: Sequence[Cause], stages: Container[str], label: str) -> None:
    """A bar for each cause; those that are no stage are lighter."""
    places = range(len(causes))[::-1]
    colours = [STAGE if cause.stage in stages else OCCASION for cause in causes]
    axes.barh(places, [100 * cause.share for cause in causes], color=colours)
    axes.set_yticks(places, [cause.stage for cause in causes])
    for place, cause in zip(places, causes, strict=True):
        axes.text(100 * cause.share, place, f" {cause.share:.0%}", va="center", fontsize=9)
    axes.margins(x=0.15)
    axes.set_xlabel(label)


def _gains(axes: "Axes", diagnosis: Diagnosis, causes: list[Cause]) -> None:
    """How many times as fast, on a logarithmic axis."""
    rows = [(f"without {cause.stage}", cause.predicted, cause.measured) for cause in causes]
    rows += [
        (each.remedy.options.replace("--set ", ""), each.remedy.predicted, each.measured) for each in diagnosis.remedies
    ]
    places = range(len(rows))[::-1]
    for place, (_, predicted, measured) in zip(places, rows, strict=True):
        if predicted is not None:
            axes.plot([predicted], [place], "o", color=PREDICTED, markersize=8)
        if measured is not None:
            value, is_known = measured.value, measured.high < math.inf
            wide = [[value - measured.low], [measured.high - value]] if is_known else None
            axes.errorbar([value], [place], xerr=wide, fmt="o", color=MEASURED, markersize=5)
    axes.axvline(1.0, color="#999999", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(places, [label for label, *_ in rows], fontsize=8)
    axes.set_xlabel("times as fast: predicted (grey), measured (orange)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.xaxis.set_minor_formatter(lambda value, _: f"{value:.2g}x" if value in SHOWN else "")
