"""Readers of public data sets, from the folder as it is published to lines for training and evaluation.

A reader lists the films of its data set from its tables (`Listing`); processes then make the line of each film. Common
parts: `tables` reads CSV, `preparation` makes, joins and counts the lines.
"""
