"""What a person sees who has no terminal: that something takes a while, and warnings of one line."""

import time

from hotloop import progress
from hotloop.progress import Terminal


def test_without_a_terminal_only_what_takes_long_is_said(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_UNTIL_SAID", 0.1)
    reporter = Terminal()
    with reporter.busy("compiling"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == ""
    with reporter.busy("compiling"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "compiling …\n"


def test_a_warning_is_one_line(capsys):
    Terminal().warn("no recording: ValueError: first\n  second")
    assert capsys.readouterr().err == "warning: no recording: ValueError: first second\n"
