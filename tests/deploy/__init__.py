"""Tests of dashboards, alerts, the chart and the image."""
