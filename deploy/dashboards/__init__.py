"""The Grafana dashboards as code; `python -m deploy.dashboards` writes them to `deploy/grafana`.

Each file of this folder but `panels.py` is one dashboard: a table of panels. A query names a metric, so a panel that
outlives its metric fails a test (`tests/deploy/test_dashboards.py`, `tests/test_prometheus.py`).
"""
