"""Explains the node's treatment of one film or study, past or future; read-only, and without a running node.

No output shows a patient's name, numbers or dates: `film.shown` decides which header values may be shown.
"""
