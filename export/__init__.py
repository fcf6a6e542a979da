"""Exported graphs of the network, and the proof that they compute what the weights compute. Imports `models` only."""
