"""Packages that add to a node, and programs that use one; nothing of the node imports them."""
