"""The pages and the API for people: who may use them, and what they show."""
