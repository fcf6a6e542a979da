"""Tests of the repository itself: its architecture, documents, names, licences and packages."""
