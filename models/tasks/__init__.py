"""The tasks that the paper evaluates, with the published prompts and settings (SPEC.md 9 and 11).

`prompts` says what is asked, `batch` brings films of a batch to one length, each other file is one task: what the
network computes for it, then what is made of that, so that settings can be tried without asking the network again.
The full report is `models.reader.ChexReader.report`, as people get it; `report` has the published selection.
"""
