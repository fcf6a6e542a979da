"""The rules for the values of settings, and the tables that stand outside `node.config`."""
