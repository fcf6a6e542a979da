"""The tests; `peers.py` and `orthanc.py` are what they talk to."""
