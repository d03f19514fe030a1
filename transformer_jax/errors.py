"""The one exception that means: the user's input, file or setting is at fault."""


class UserError(Exception):
    """Bad input, told in one sentence: what, where, and what to do about it.

    The commands print the message without a traceback and exit with status 2.
    """
