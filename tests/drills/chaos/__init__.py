"""A hospital's worst night, counted: power cuts, an archive that comes and goes, senders that send until Success.

`verdict` judges what an archive got, `senders` are the PACS, `node` starts what was killed, `night` puts them together;
`disk` fills a disk. The scripted reader of `tests.support.fakes` reads, for speed: nothing depends on what is said.
"""
