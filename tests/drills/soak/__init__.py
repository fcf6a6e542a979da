"""Ten callers at once, good and bad, for as long as asked: what a node needs must not grow.

`callers` has what they do, `vitals` what is measured and what counts as flat, `shift` puts both together.
"""
