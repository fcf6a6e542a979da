"""The ChEX network in torch: its parts, and the functions that an engine offers."""
