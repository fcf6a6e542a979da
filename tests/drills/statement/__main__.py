"""Writes the tables of the conformance statement anew: python -m tests.drills.statement."""

from __future__ import annotations

from tests.drills.statement.tables import PATH, rendered


def main() -> None:
    """Rewrite every table between its marks; the text around them stays."""
    PATH.write_text(rendered(PATH.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
