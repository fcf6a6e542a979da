"""The command `shadow`: reads stored films with another model or prompt set beside the one in use; sends nothing."""
