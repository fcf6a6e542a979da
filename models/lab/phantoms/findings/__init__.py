"""Findings; each is drawn into a scene by a function that returns the part of the film it changed.

A finding ends where it is no longer visible: the returned mask covers everything that the film without the finding
would not show, and its box is taken from that mask.
"""
