"""Writes every dashboard: python -m deploy.dashboards."""

from __future__ import annotations

from pathlib import Path

from deploy.dashboards.files import render_all

FOLDER = Path(__file__).parents[1] / "grafana"


def main() -> None:
    """Write each dashboard where Grafana's provisioning finds it."""
    for name, content in render_all().items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
