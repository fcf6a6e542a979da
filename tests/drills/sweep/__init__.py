"""Reads many films as the node does, and looks for words that contradict a decision, or answers that differ."""
