"""``holt user``, ``holt vhost``, ``holt permission``: access rights in a broker or in its folder.

Owns: arguments and texts. Must not touch: the choice between broker and folder; ``target`` makes it.
"""

from difflib import get_close_matches

import click

from holtmq.auth.rights import KNOWN_TAGS
from holtmq.cli.registry import PermissionRow, Registry, UserRow
from holtmq.cli.target import Target, as_json, in_vhost, new_password, show, with_registry

_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
_LONGEST = 255


@click.group()
def user() -> None:
    """Add, change and remove users."""


@user.command("add")
@click.argument("name")
@click.option("--tag", "tags", multiple=True, help="administrator, monitoring, ...; may be repeated.")
@_stdin
@with_registry
def add_user(target: Target, name: str, tags: tuple[str, ...], password_stdin: bool) -> None:
    """Add user NAME. It has no permissions until `holt permission set` grants some."""
    _check_name(name)
    _check_tags(tags)
    with target.registry() as registry:
        if any(known.name == name for known in registry.users()):
            raise click.ClickException(f"there is a user '{name}' already; see `holt user passwd` and `tags`")
        registry.put_user(UserRow(name, list(tags)), new_password(password_stdin))
    click.echo(f"User '{name}' added.")


@user.command("list")
@as_json
@with_registry
def list_users(target: Target, as_json: bool) -> None:
    """List users and their tags."""
    with target.registry() as registry:
        show(registry.users(), ("name", "tags"), as_json)


@user.command("delete")
@click.argument("name")
@with_registry
def delete_user(target: Target, name: str) -> None:
    """Remove user NAME with all its permissions; its connections are closed."""
    with target.registry() as registry:
        registry.delete_user(name)
    click.echo(f"User '{name}' deleted.")


@user.command("passwd")
@click.argument("name")
@_stdin
@with_registry
def change_password(target: Target, name: str, password_stdin: bool) -> None:
    """Change the password of user NAME. Open connections stay open."""
    with target.registry() as registry:
        known = _user(registry, name)
        registry.put_user(known, new_password(password_stdin))
    click.echo(f"Password of user '{name}' changed.")


@user.command("tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@with_registry
def change_tags(target: Target, name: str, tags: tuple[str, ...]) -> None:
    """Set the tags of user NAME to TAGS; without TAGS, remove all."""
    _check_tags(tags)
    with target.registry() as registry:
        known = _user(registry, name)
        registry.put_user(UserRow(name, list(tags), known.password_hash), None)
    click.echo(f"Tags of user '{name}': {', '.join(tags) or 'none'}.")


def _check_tags(tags: tuple[str, ...]) -> None:
    for tag in tags:
        if tag not in KNOWN_TAGS:
            near = get_close_matches(tag, KNOWN_TAGS, 1, cutoff=0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.ClickException(f"there is no tag '{tag}'.{hint} Tags are {', '.join(KNOWN_TAGS)}")


@click.group()
def vhost() -> None:
    """Add and remove vhosts."""


@vhost.command("add")
@click.argument("name")
@with_registry
def add_vhost(target: Target, name: str) -> None:
    """Add vhost NAME."""
    _check_name(name)
    with target.registry() as registry:
        if any(known.name == name for known in registry.vhosts()):
            raise click.ClickException(f"there is a vhost '{name}' already")
        registry.put_vhost(name)
    click.echo(f"Vhost '{name}' added.")


@vhost.command("list")
@as_json
@with_registry
def list_vhosts(target: Target, as_json: bool) -> None:
    """List vhosts."""
    with target.registry() as registry:
        show(registry.vhosts(), ("name", "messages"), as_json)


@vhost.command("delete")
@click.argument("name")
@with_registry
def delete_vhost(target: Target, name: str) -> None:
    """Remove vhost NAME with every queue and message in it; its connections are closed."""
    with target.registry() as registry:
        registry.delete_vhost(name)
    click.echo(f"Vhost '{name}' deleted.")


@click.group()
def permission() -> None:
    """Set, list and remove permissions of users in a vhost."""


@permission.command("set")
@click.argument("name")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@in_vhost
@with_registry
def set_permission(target: Target, name: str, configure: str, write: str, read: str, vhost: str) -> None:
    """Set the permissions of user NAME: three patterns, CONFIGURE, WRITE and READ.

    Each is a regular expression that is searched in the names of queues and exchanges. '.*' matches all,
    '' matches none, '^orders' matches names that begin with orders. It applies to open connections at once.
    """
    with target.registry() as registry:
        registry.set_permissions(PermissionRow(name, vhost, configure, write, read))
    click.echo(f"Permissions of user '{name}' in vhost '{vhost}' set.")


@permission.command("list")
@click.option("-p", "--vhost", help="Only in this vhost.")
@click.option("--of", "of_user", help="Only of this user.")
@as_json
@with_registry
def list_permissions(target: Target, vhost: str | None, of_user: str | None, as_json: bool) -> None:
    """List permissions."""
    with target.registry() as registry:
        rows = [
            row
            for row in registry.permissions()
            if vhost in (None, row.vhost) and of_user in (None, row.user)
        ]
    show(rows, ("user", "vhost", "configure", "write", "read"), as_json)


@permission.command("clear")
@click.argument("name")
@in_vhost
@with_registry
def clear_permission(target: Target, name: str, vhost: str) -> None:
    """Remove all permissions of user NAME in the vhost."""
    with target.registry() as registry:
        registry.clear_permissions(name, vhost)
    click.echo(f"Permissions of user '{name}' in vhost '{vhost}' cleared.")


def _user(registry: Registry, name: str) -> UserRow:
    found = next((known for known in registry.users() if known.name == name), None)
    if found is None:
        raise click.ClickException(f"no user '{name}'")
    return found


def _check_name(name: str) -> None:
    """The same check as in the API; a change in a folder does not pass through the API."""
    if not name or len(name.encode()) > _LONGEST or not name.isprintable():
        raise click.ClickException(f"a name has 1 to {_LONGEST} bytes and no control characters")
