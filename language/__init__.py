"""Reads and makes sentences of chest radiology by rule. Standard library only; imports none of our other packages."""
