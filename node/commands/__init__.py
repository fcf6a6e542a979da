"""The commands of `python -m node` except `serve`; `node.__main__` only parses arguments and prints."""
