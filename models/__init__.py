"""The ChEX network: answers phrases and boxes about one chest film with boxes, scores and sentences.

Imports nothing of `node` or `export`. What needs no torch (manifest, tokenizers, preprocess, boxes) does not import it.
"""
