"""The objects that leave the node: one file per kind; `document` has their common parts."""
