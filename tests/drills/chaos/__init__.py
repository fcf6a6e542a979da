"""A hospital's worst night, counted: power cuts, archives that come and go, senders that send until Success.

`verdict` judges what two archives hold, `senders` are the PACS, `node` starts what was killed, `night` puts them
together; `scenarios` has the single misfortunes. The node reads with the scripted reader of `tests.support.fakes`,
for speed: nothing here depends on what is said about a film.
"""
