"""For operators: examples, dashboards, alerts."""
