"""The pages and the interface for programs: who may use them, and what they show."""
