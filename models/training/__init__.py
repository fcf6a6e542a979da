"""Training: from a run file to a model directory (SPEC.md 10); `python -m models.train` is the command.

`runfile` says what a run is, `store` and `films` what it learns from, `forward` what the network computes for it,
`objectives` what it minimizes, `loop` how. All that is random is drawn from the run's seed and the number of the step,
so a run that was killed goes on as if it had not been.
"""
