"""Fetch the dashboard's libraries anew: ``python scripts/vendor.py``. Needs npm, writes ui/vendor.

The files are the packages' own ES modules. One thing is changed: a browser cannot find ``preact`` by its bare
name without an inline import map, which the content security policy forbids, so such imports become paths.
"""

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

TARGET = Path(__file__).parent.parent / "src/holtmq/http/dashboard/ui/vendor"
PACKAGES = {
    "preact": ("10.29.8", {"dist/preact.module.js": "preact.js", "hooks/dist/hooks.module.js": "hooks.js"}),
    "htm": ("3.1.1", {"dist/htm.module.js": "htm.js"}),
    "@preact/signals-core": ("1.14.5", {"dist/signals-core.module.js": "signals-core.js"}),
    "@preact/signals": ("2.11.4", {"dist/signals.module.js": "signals.js"}),
    "uplot": ("1.6.32", {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"}),
}
PATHS = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
_IMPORT = re.compile(r'((?:from|import)\s*)"(preact|preact/hooks|@preact/signals-core)"')
_MAP = re.compile(rb"\n//# sourceMappingURL=\S+\s*$")


def main() -> None:
    """Write every file and ``versions.json``."""
    TARGET.mkdir(parents=True, exist_ok=True)
    listed: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (version, wanted) in PACKAGES.items():
            packed = subprocess.run(
                ["npm", "pack", "--silent", f"{name}@{version}"],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
                about = json.loads(_member(archive, "package.json"))
                licence = next(m for m in archive.getnames() if Path(m).name.upper().startswith("LICENSE"))
                short = name.replace("@", "").replace("/", "-")
                (TARGET / f"{short}-LICENSE.txt").write_bytes(_member(archive, licence.split("/", 1)[1]))
                for inside, outside in wanted.items():
                    content = _MAP.sub(b"\n", _member(archive, inside))
                    text = _IMPORT.sub(lambda m: f'{m[1]}"{PATHS[m[2]]}"', content.decode())
                    (TARGET / outside).write_text(text)
                    listed[outside] = {
                        "package": name,
                        "version": version,
                        "licence": about["license"],
                        "sha256": hashlib.sha256(text.encode()).hexdigest(),
                    }
    (TARGET / "versions.json").write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(f"package/{name}")
    assert found is not None, name
    return found.read()


if __name__ == "__main__":
    main()
