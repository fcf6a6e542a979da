"""Runnable: a backup of `storage.directory` while its node runs or stands.

    python -m deploy.backup STORAGE_DIRECTORY BACKUP [--database-url URL]
                                                            BACKUP must not exist; docs/operate/backup.md says the rest

Nothing is locked, so the order of the copies is what makes them agree. Marks of finished rounds come first, then the
ledger, then everything else: a mark in the backup has its deliveries in the ledger's copy, and whatever the ledger
names lies in the files, which are younger. Work that went on meanwhile is found unfinished and is done again, with the
same outputs. The executor's database stays behind; the node builds it again from ledger and files at its start.
On PostgreSQL the ledger is the schema `chex`, copied by pg_dump as it is at one moment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from models.program import VERSION_LINE

LEDGER = "ledger.sqlite"
DUMP = "ledger.pg_dump"
VIEW = "chex.queue_depth"  # of the executor's tables; the node makes it again
FOLDERS = ("studies", "orders")
FORMAT = "format"  # of the files, see node/store/folders.py
EXPORT_KEY = "export-key"  # by which `node export` maps patients
TEMPORARY = ".incoming-"  # never acknowledged to anybody


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.backup", description="Back up a node while it runs.")
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    parser.add_argument("storage", type=Path, metavar="STORAGE_DIRECTORY", help="storage.directory of the node")
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="a new folder")
    parser.add_argument("--database-url", metavar="URL", help="storage.database_url, where the ledger is in PostgreSQL")
    options = parser.parse_args(arguments)
    storage, backup = options.storage, options.backup
    if not (storage / ("studies" if options.database_url else LEDGER)).exists():
        said = "" if options.database_url else "; with the ledger in PostgreSQL add --database-url"
        print(f"{storage}: is no node's; name its storage.directory{said}", file=sys.stderr)
        return 2
    if options.database_url and shutil.which("pg_dump") is None:
        print(
            "pg_dump is not installed; install PostgreSQL's client programs here, or run this where they are",
            file=sys.stderr,
        )
        return 2
    if backup.exists():
        print(f"{backup}: exists already; name a new folder", file=sys.stderr)
        return 2
    try:
        files = back_up(storage, backup, database_url=options.database_url)
    except subprocess.CalledProcessError as error:
        print(
            f"failed: {error.stderr.strip()}; the backup is not complete, remove {_unfinished(backup)}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print(f"stopped; the backup is not complete, remove {_unfinished(backup)}", file=sys.stderr)
        return 130  # what a shell expects after Ctrl-C
    except (OSError, sqlite3.Error) as error:
        print(f"failed: {error}; the backup is not complete, remove {_unfinished(backup)}", file=sys.stderr)
        return 1
    print(f"{backup}: {files} files")
    return 0


def back_up(storage: Path, backup: Path, *, database_url: str | None = None) -> int:
    """Copy a node's directory; returns the number of files. The backup has its name only once it is complete.

    database_url: where the ledger is, if not in the directory
    Raises OSError, sqlite3.Error, or CalledProcessError with pg_dump's message.
    """
    aside = _unfinished(backup)
    aside.mkdir(mode=0o700, parents=True)
    marks = _copy(storage.glob("studies/*/rounds/*.json"), storage, aside)
    if database_url is None:
        _copy_database(storage / LEDGER, aside / LEDGER)
    else:
        _dump_database(database_url, aside / DUMP)
    rest = (path for folder in FOLDERS for path in (storage / folder).rglob("*") if not _is_mark(path, storage))
    files = _copy(rest, storage, aside)
    files += sum(_copy(storage.glob(name), storage, aside) for name in (FORMAT, EXPORT_KEY))
    os.sync()
    aside.rename(backup)
    return marks + files + 1


def _is_mark(path: Path, storage: Path) -> bool:
    """Whether a file is the mark of a round; one that is younger than the ledger's copy must not come along."""
    return path.relative_to(storage).match("studies/*/rounds/*.json")


def _copy(paths: Iterator[Path], storage: Path, backup: Path) -> int:
    """Copy files with their times, which record arrivals. Files that the node removes meanwhile were delivered."""
    copied = 0
    for path in paths:
        target = backup / path.relative_to(storage)
        if path.name.startswith(TEMPORARY) or path.is_dir():
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            shutil.copy2(path, target)
        except FileNotFoundError:
            continue
        copied += 1
    return copied


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database as it is between two transactions."""
    address = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _dump_database(url: str, target: Path) -> None:
    """Copy our schema of a PostgreSQL as it is at one moment; pg_dump finds a password as psql does."""
    command = [
        "pg_dump",
        "--schema=chex",
        f"--exclude-table={VIEW}",
        "--format=custom",
        "--no-owner",
        f"--file={target}",
    ]
    subprocess.run([*command, url], check=True, capture_output=True, text=True)


def _unfinished(backup: Path) -> Path:
    return backup.with_name(f".{backup.name}.unfinished")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
