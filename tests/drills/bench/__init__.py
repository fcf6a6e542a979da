"""`make bench`: measures in one run how fast the node is, beside its peers, and holds the figures against limits."""
