"""The libraries of the dashboard are the versions that are written down, byte for byte."""

import hashlib
import json
import re
from importlib.resources import files

VENDOR = files("holtmq.http.dashboard").joinpath("ui/vendor")


def test_every_vendored_file_is_listed_with_its_hash_and_licence() -> None:
    listed = json.loads(VENDOR.joinpath("versions.json").read_text())

    present = {entry.name for entry in VENDOR.iterdir() if entry.name.endswith((".js", ".css"))}
    assert present == set(listed)
    for name, about in listed.items():
        content = VENDOR.joinpath(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == about["sha256"], name
        short = about["package"].replace("@", "").replace("/", "-")
        assert VENDOR.joinpath(f"{short}-LICENSE.txt").is_file(), name


def test_no_module_of_the_page_names_another_host() -> None:
    ui = files("holtmq.http.dashboard").joinpath("ui")
    for folder in ("parts", "pages", "."):
        for entry in ui.joinpath(folder).iterdir():
            if entry.name.endswith((".js", ".html", ".css")):
                assert not re.search(r"""["'(]https?://""", entry.read_text()), entry.name
