"""The program's version, which node, network and exporter share, and what a person types to run a part of it.

It imports nothing. Installed metadata cannot give the version, because a checkout runs without being installed.
"""

from pathlib import Path

__version__ = "1.0.0"
VERSION_LINE = f"%(prog)s (ChEX Node) {__version__}"
"""What `--version` of every command prints, in the form of argparse."""
FAULTS_URL = ""
"""The public page where faults of this program are reported; empty: there is none yet. No other file repeats it."""


def command_for(module: str) -> str:
    """Return what a person types to run a module: `python -m models.train`, or `chex-models train` where installed.

    In an installed program the folders lie in `chex_node/program`, and `python -m` does not find them.
    """
    if Path(__file__).parts[-4:-2] != ("chex_node", "program"):
        return f"python -m {module}"
    if module == "node":
        return "chex-node"
    subcommand = "export" if module == "export.build" else module.rpartition(".")[2].replace("_", "-")
    return f"chex-models {subcommand}"
