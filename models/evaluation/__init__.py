"""How well a model does: films with known truth, what it says of them, and figures of that (see README.md).

`cases` and `boxes_file` bring films, `subject` asks the model film by film, since some published tasks depend on what
else is in a batch. `detection`, `anatomy`, `regions`, `reports` and `hints` each make the figures of one task,
`references` those of somebody who never looks at a film, `tuning` chooses a manifest's decisions.
"""
