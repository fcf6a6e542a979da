"""Measures a model on films with known labels (docs/model/evaluation.md).

`cases` and `boxes_file` provide films, `evaluated_model` runs the model on one film at a time, because some published
tasks depend on what else is in a batch. `detection`, `anatomy`, `regions`, `reports` and `side_questions` each compute
the figures of one task, `run` all of them beside constant answers that need no image. `calibrating` and `tuning` choose
a manifest's decisions.
"""
