"""What leaves the node: one file per kind of object, and what they share in `document`."""
