"""Sends outputs to the archive and the information system, and asks the archive to commit to them."""
