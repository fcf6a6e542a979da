"""What several test files share: films, peers, services, fakes behind our own protocols."""
