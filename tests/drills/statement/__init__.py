"""The tables of docs/integrate/conformance.md, made from the code; `python -m tests.drills.statement` writes them."""
