"""How a settings file is read, and the tables of settings that stand outside `node.config`."""
