"""What `python -m node` does besides `serve`; `node.__main__` only parses arguments and prints."""
