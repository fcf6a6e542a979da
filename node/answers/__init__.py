"""Answers in words, made by rule from what the network said of a film: never free text."""
