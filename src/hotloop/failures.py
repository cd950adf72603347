"""What an env can do that ends a run: it is saved first, and the message is one line for the user."""


class NotFinite(Exception):
    """An env gave a NaN or an infinity; the message names it."""


class EnvFailed(Exception):
    """An env raises whatever is done; the message names it and the error."""
