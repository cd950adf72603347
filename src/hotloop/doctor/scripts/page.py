"""The report on a script as one page that needs nothing else."""

import html
import shlex

from hotloop.doctor.causes import verdict_of
from hotloop.doctor.losses import LISTED
from hotloop.doctor.page import draw_shares, in_letters, lines_of_code, table_of, whole_page
from hotloop.doctor.report import on_shares, verdict_line
from hotloop.doctor.scripts.diagnosis import ScriptDiagnosis
from hotloop.doctor.scripts.findings import Found
from hotloop.doctor.scripts.report import (
    TITLES_OF_SCRIPT,
    confidence_in,
    footing,
    next_step,
    row_of,
    tried_in_words,
    why,
)
from hotloop.profiling.show import place_of


def page_of(diagnosis: ScriptDiagnosis) -> str:
    """All of it."""
    found = diagnosis.found
    verdict = verdict_of(found.causes)
    named = verdict_line(found.causes, confidence_in(found)) if found.causes else "none"
    box = [("verdict", named), ("why", why(found)), ("next", next_step(found))]
    parts = []
    if found.causes:
        parts = [
            f'<p><img alt="where the time goes" src="data:image/png;base64,{_picture(found)}"></p>',
            "<h2>Where the time goes</h2>",
            table_of(TITLES_OF_SCRIPT, [row_of(cause) for cause in found.causes]),
            f"<p class=dim>{html.escape(on_shares(found.causes))}</p>",
        ]
    if verdict is not None:
        parts += lines_of_code([verdict], "share of the time")
    if 1 - found.coverage >= LISTED and found.unnamed:
        rows = [(place_of(line), f"{line['share']:.0%}", line["text"]) for line in found.unnamed]
        parts += ["<h2>Time that has no name</h2>", table_of(("line", "share of the time", ""), rows)]
    if tried := tried_in_words(diagnosis):
        parts += ["<h2>Tried</h2>", *(f"<p>{html.escape(line)}</p>" for line in tried)]
    return whole_page(shlex.join(found.attended.command), box, parts, [footing(found)])


def _picture(found: Found) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.4 * len(found.causes)), layout="constrained")
    draw_shares(axes, found.causes, {cause.stage for cause in found.causes}, "% of the training thread's time")
    return in_letters(figure)
