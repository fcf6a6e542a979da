"""The installed program: the commands `chex-node` and `chex-models`, and the folders they run.

The program imports itself as `node`, `models`, `export` and `language`. These names are too common to lie in
site-packages, where a package of another project may have them. In the wheel the four folders lie in
`chex_node/program`, byte for byte as in the repository, and only the two commands put that folder on `sys.path`.
"""
