"""`hotloop`, and `python -m hotloop`: Ctrl-C ends them with a line from the first import on."""

from hotloop.interrupts import EndsTheCommand


def main() -> None:
    """Run a command."""
    with EndsTheCommand():
        from hotloop import cli
    cli.main()


if __name__ == "__main__":
    main()
