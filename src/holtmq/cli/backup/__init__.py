"""``holt backup`` and ``holt restore``.

Owns: arguments and texts. Must not touch: formats; ``saving`` and ``restoring`` do the work.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click
import msgspec

from holtmq.cli.backup.archives import ArchiveStore, is_archive
from holtmq.cli.backup.catalogue import BackupRow, Catalogue
from holtmq.cli.backup.restoring import restore_into
from holtmq.cli.backup.saving import save
from holtmq.cli.backup.sources import running_broker, stopped_folder
from holtmq.cli.backup.stores import BackupError, open_store
from holtmq.cli.target import Target, as_json, show, with_registry
from holtmq.cli.wording import counted
from holtmq.journal import JournalError


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (BackupError, JournalError) as error:
        raise click.ClickException(str(error)) from None


def _catalogue(place: str, *, must_exist: bool) -> Catalogue:
    return Catalogue(
        ArchiveStore(Path(place)) if is_archive(place) else open_store(place, must_exist=must_exist)
    )


@click.command()
@click.argument("place")
@click.option("--list", "only_list", is_flag=True, help="List the backups there, and make none.")
@click.option("--keep", type=click.IntRange(1), help="Afterwards delete all but this many newest backups.")
@as_json
@with_registry
def backup(target: Target, place: str, only_list: bool, keep: int | None, as_json: bool) -> None:
    """Back up the broker's data to PLACE: a folder, or a bucket such as s3://name/path.

    The broker goes on meanwhile. Only what changed since the last backup at PLACE is copied. With --data-dir,
    the folder of a stopped broker is backed up, also while another broker runs on this machine.
    """
    with _errors():
        if is_archive(place) and not only_list:
            raise BackupError(f"{place} is an archive: name a folder or a bucket to back up to")
        catalogue = _catalogue(place, must_exist=only_list)
        if only_list:
            show(catalogue.rows(), BackupRow.__struct_fields__, as_json)
            return
        folder = target.stopped_folder()
        opening = stopped_folder(folder) if folder is not None else running_broker(target.api())
        with catalogue.store.alone():
            with opening as source:
                made = save(source, catalogue, time.time())
            gone = catalogue.prune(keep) if keep is not None else 0
        of = "" if folder is None else f" of {folder}, which no broker has open"
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
        return
    click.echo(
        f"Backup {made.name}{of}: {made.files} files, {made.bytes:,} bytes; "
        f"{made.copied:,} bytes were copied, the rest was there already."
    )
    if gone:
        click.echo(f"{counted(gone, 'older backups')} deleted.")


@click.command()
@click.argument("place")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--backup", "name", help="This backup, as listed. Default: the newest.")
@click.option("--at", "moment", help="The newest backup begun at or before this time (2026-01-31T12:00:00Z).")
def restore(place: str, folder: Path, name: str | None, moment: str | None) -> None:
    """Restore a backup from PLACE into FOLDER, which must be empty or not exist, and verify every byte.

    PLACE is a folder, a bucket, or a .tar archive that was downloaded from the dashboard.
    """
    if name is not None and moment is not None:
        raise click.UsageError("name --backup or --at, not both")
    with _errors():
        catalogue = _catalogue(place, must_exist=True)
        manifest = catalogue.choose(name, None if moment is None else _moment_ms(moment))
        report = restore_into(catalogue, manifest, folder)
    click.echo(f"Backup {manifest.name} restored to {folder}: {report}.")
    click.echo(f"`holt serve --data-dir {folder}` starts a broker on it.")


def _moment_ms(text: str) -> int:
    """A time without a zone is this machine's; a whole second includes its end: as ``--list`` shows it."""
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp()
    except (ValueError, OverflowError):  # also a year that no clock shows
        raise click.BadParameter(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None
    return int(seconds * 1000) + (0 if moment.microsecond else 999)
