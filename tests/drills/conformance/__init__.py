"""What real viewers and validators make of the node's objects, measured in their pictures and complaints.

`cases` has the studies, `studies` reads and writes them as the node does, `pictures` finds boxes in screenshots. Each
viewer has a file of its own: `ohif`, `dicomscope`. `viewing` compares what they show with report.json.
`validation` has the validators and many drawn studies. `packages` fetches the viewers that no Debian package holds.
"""
