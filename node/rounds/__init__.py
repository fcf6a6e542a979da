"""The files, reports and outputs of a round, decided from the spool's content of its study."""
