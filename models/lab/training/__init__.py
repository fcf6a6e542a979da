"""Training: turns a run file into a model directory (spec §10); `python -m models.train` is the command.

`runfile` describes a run, `store` and `films` provide its films, `forward` computes the network's outputs, `objectives`
the losses, and `loop` runs the stages. Every random number comes from the run's seed and the number of the step, so a
run that was killed continues with the same results.
"""
