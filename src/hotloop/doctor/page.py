"""The doctor's report as one page that needs nothing else: verdict, pictures, tables."""

import base64
import html
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.doctor.causes import Cause, causes_of
from hotloop.doctor.diagnosis import Diagnosis
from hotloop.doctor.report import TITLES, cells_of, next_step, sentence, verdict_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED, MEASURED, STAGE, OCCASION = "#b9c4ce", "#d6763e", "#4a6076", "#9db4c8"
SHOWN = (0.2, 0.5, 2.0, 5.0, 20.0)
"""Between powers of ten, what an axis names."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:left}td.n,th.n{text-align:right}.box{border:2px solid #4a6076;border-radius:.5rem;padding:.5rem 1rem}"
    "img{max-width:100%}code{background:#f2f2f2;padding:0 .2rem}.dim{color:#777}"
)


def write_page(diagnosis: Diagnosis, path: Path) -> None:
    """Write it."""
    seen = diagnosis.seen
    causes = causes_of(seen)
    named, words = verdict_named(causes)
    lines = [("verdict", f"{named}: {words}"), ("why", sentence(causes)), ("next", next_step(diagnosis))]
    box = "".join(f"<div><b>{title}</b> {html.escape(text)}</div>" for title, text in lines)
    footing = [f"{1 / seen.seconds:,.0f} env steps/s", f"pipeline {seen.pipeline}", f"{seen.rounds} rounds"]
    footing += [f"{name} {value}" for name, value in seen.machine.items()] + seen.notices
    parts = [
        f"<h1>{html.escape(seen.spec.name)}</h1><div class=box>{box}</div>",
        f'<p><img alt="where the time goes" src="data:image/png;base64,{_picture(diagnosis, causes)}"></p>',
        "<h2>Where the time goes</h2>",
        _table(TITLES, [cells_of(cause) for cause in causes]),
        "<h2>Settings that learn the same</h2>",
        _table(
            ("setting", "predicted", "measured", ""),
            [
                (tried.remedy.options, f"{tried.remedy.predicted:.2f}x", str(tried.measured or ""), tried.why_not)
                for tried in diagnosis.remedies
            ],
        )
        if diagnosis.remedies
        else "<p>None is predicted to be faster.</p>",
        f"<p class=dim>{html.escape('; '.join(footing))}</p>",
    ]
    title = html.escape(f"hotloop doctor: {seen.spec.name}")
    body = "\n".join(parts)
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n{body}\n", encoding="utf-8"
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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
    _shares(left, diagnosis, causes)
    _gains(right, diagnosis, causes)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, dpi=120, format="png")
    plt.close(figure)
    return base64.b64encode(written.getvalue()).decode()


def _shares(axes: "Axes", diagnosis: Diagnosis, causes: list[Cause]) -> None:
    places = range(len(causes))[::-1]
    colours = [STAGE if cause.where in diagnosis.seen.stages else OCCASION for cause in causes]
    axes.barh(places, [100 * cause.share for cause in causes], color=colours)
    axes.set_yticks(places, [cause.where for cause in causes])
    for place, cause in zip(places, causes, strict=True):
        axes.text(100 * cause.share, place, f" {cause.share:.0%}", va="center", fontsize=9)
    axes.margins(x=0.15)
    axes.set_xlabel("% of an env step's time")


def _gains(axes: "Axes", diagnosis: Diagnosis, causes: list[Cause]) -> None:
    """How many times as fast, on a logarithmic axis."""
    rows = [(f"without {cause.where}", cause.predicted, cause.measured) for cause in causes]
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
