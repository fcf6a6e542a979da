"""One process of the service: what it builds, starts and stops, its HTTP pages, its cleaning up."""
