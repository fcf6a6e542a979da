"""Answers in template sentences about the network's reading of a film: never free text."""
