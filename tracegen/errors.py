"""The one error that a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: one line that names what is wrong and what to do about it.

    The command line prints the message alone and exits with status 2.
    """
