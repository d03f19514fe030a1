"""The exception for errors that users can fix: a wrong input, file, flag or setting."""


class UserError(Exception):
    """One sentence for the user: what happened, where, and what to do.

    The commands print the message without a traceback and exit with status 2.
    """
