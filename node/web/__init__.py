"""The pages and the interface for programs, with access control."""
