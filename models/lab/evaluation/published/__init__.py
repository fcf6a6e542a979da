"""The nine tasks of the paper, on films that `models.prepare` wrote lines of (docs/model/paper.md).

`labels` is what a film is measured by, `model` the network and its words. `detection`, `grounding`, `classification`
and `texts` each make the figures of their tasks, with what is chosen on other films before; `run` calls them.

Texts: `clinical_efficacy` says which classes they find, by rules, by `chexbert` or by a file, and counts these;
`text_metrics` compares words.
"""
