"""The pages and the interface for programs: look at a film, ask about it, see what waits."""
