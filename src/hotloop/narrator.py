"""What the terminal hears of a run: a live line, and a lasting one per evaluation."""

from hotloop.listeners import Chunk, Evaluation, Listener
from hotloop.plain import Figures, number, numbers
from hotloop.progress import Reporter


class Narrator(Listener):
    """Tells a reporter what a person wants to see."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def on_chunk(self, chunk: Chunk) -> None:
        """Update the live line."""
        self._reporter.show(chunk.env_steps, chunk.steps_in_all, chunk.figures)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line."""
        self._reporter.say(f"step {evaluation.env_steps:>9,}  {_said(evaluation.summary)}")


def _said(summary: Figures) -> str:
    """An evaluation in one line: the return, and the env's own figures."""
    own = [name for name in summary if name.endswith("_mean") and name not in ("return_mean", "length_mean")]
    figures = "".join(f"  {name.removesuffix('_mean')} {number(summary, name):.1f}" for name in own)
    if cut := summary.get("cut"):
        figures += f"  (cut short: {cut} of the episodes were not played to their end; see evaluation.max_share)"
    if summary.get("endless"):
        figures += f"  ({number(summary, 'endless'):g} episodes reached evaluation.max_steps and count as they stood)"
    if "return_iqm" not in summary:
        return f"greedy return {number(summary, 'return_mean'):7.1f} ± {number(summary, 'return_std'):.1f}{figures}"
    kind = next((name.removeprefix("by_") for name in summary if name.startswith("by_")), "member")
    low, high = numbers(summary, "return_interval")
    return f"greedy return, IQM of {kind}s {number(summary, 'return_iqm'):7.1f} ({low:.1f}–{high:.1f}){figures}"
