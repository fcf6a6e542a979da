"""Writes what documents and chart say of the code anew: python -m docs.statement."""

from __future__ import annotations

from docs.statement import schema
from docs.statement.tables import PATH, rendered


def main() -> None:
    """Rewrite every table of the conformance statement between its marks, and the kinds of outputs in the schema."""
    for path, made_anew in ((PATH, rendered), (schema.PATH, schema.with_kinds)):
        path.write_text(made_anew(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
