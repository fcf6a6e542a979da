"""What the images are made of: digests and hashes, and known faults of packages. Whoever has a network looks them up.

Nothing here holds a digest or a hash of its own: each comes from a registry or an index at the moment of the command.
"""


class NotLookedUp(Exception):
    """A registry, an index or a service did not answer as it should; the text says which, and what it did."""


def one_line(text: object) -> str:
    """Write an error's text in one line of at most 300 characters."""
    return " ".join(str(text).split())[:300]
