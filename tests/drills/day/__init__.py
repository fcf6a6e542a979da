"""A hospital's day in minutes: films by a day curve, an archive that restarts, a PACS that sends again, corrections.

`course` has what happens and when, `hospital` lets it happen to a node that a real Prometheus watches, `alerts` judges
which alerts fired.
"""
