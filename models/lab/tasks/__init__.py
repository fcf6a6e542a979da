"""The tasks that the paper evaluates, with the published prompts and settings (spec §9 and 11).

`prompts` holds the prompts, `batch` pads the films of a batch, and each other file is one task. Running the network and
interpreting its outputs are separate functions, so that settings can be tried without running it again. The full report
of the node is `models.reading.reader.ChexReader.report`; `sentence_selection` has the published selection.
"""
