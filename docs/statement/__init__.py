"""The tables of docs/integrate/conformance.md, made from the code; `python -m docs.statement` writes them."""
