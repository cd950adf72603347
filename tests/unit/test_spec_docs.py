from pathlib import Path

from hotloop.spec.docs import as_markdown

REFERENCE = Path(__file__).parents[2] / "docs" / "spec.md"


def test_the_reference_is_what_the_spec_says_today():
    assert REFERENCE.read_text() == as_markdown(), "run `make docs`"


def test_every_section_of_the_spec_is_in_the_reference():
    text = as_markdown()
    for heading in (
        "## env",
        "## network.torso (kind: cnn)",
        "## network.torso (kind: impala)",
        "## network.torso (kind: branches)",
        "## network.torso.branches",
        "## network.core",
        "## network.head (kind: scalar)",
        "## network.head (kind: c51)",
        "## network.head (kind: qr)",
        "## network.head (kind: iqn)",
        "## target.munchausen",
        "## on_policy",
        "## replay.sequence",
        "### periodic",
        "## guard",
    ):
        assert f"\n{heading}\n" in text
