"""What an operator needs beside the node: examples, dashboards, alerts."""
