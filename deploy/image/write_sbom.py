"""Write what the image is made of as CycloneDX 1.6 JSON.

Usage: write_sbom.py WHEELS DEBS DESTINATION. There is one component for each wheel and each Debian package in the two
folders, with name, version, purl and the SHA-256 of the file that was installed, and a wheel's licence as its metadata
tells it. The licences of Debian packages are in the image, in /usr/share/doc/NAME/copyright. The same files and
SOURCE_DATE_EPOCH give the same bytes. It needs Python's standard library and dpkg-deb, so the builder installs nothing
for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
import zipfile
from datetime import datetime, timezone
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

OURS = "rl-dataplane"


def main() -> None:
    wheels, debs, destination = map(Path, sys.argv[1:])
    python = [python_component(wheel) for wheel in sorted(wheels.glob("*.whl"))]
    debian = [debian_component(deb) for deb in sorted(debs.glob("*.deb"))]
    destination.write_text(json.dumps(bill([*python, *debian]), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def bill(components: list[dict[str, Any]]) -> dict[str, Any]:
    ours = next(found for found in components if found["name"] == OURS)
    image = {"type": "container", "bom-ref": "image", "name": f"{OURS}-server", "version": ours["version"]}
    made = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    references = [found["bom-ref"] for found in components]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components))}",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "authors": [{"name": "The RL Data Plane authors"}],
            "component": image,
        },
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": references}, *({"ref": found} for found in references)],
    }


def python_component(wheel: Path) -> dict[str, Any]:
    metadata = wheel_metadata(wheel)
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    version = metadata["Version"]
    return component(wheel, name, version, f"pkg:pypi/{name}@{quote(version)}", licence(metadata))


def wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return BytesHeaderParser().parsebytes(archive.read(path))


def licence(metadata: Message) -> list[dict[str, Any]]:
    """An SPDX expression where the wheel has one, else the name that it gives; empty where it gives none."""
    if metadata["License-Expression"]:
        return [{"expression": metadata["License-Expression"]}]
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    names = [line.rpartition(" :: ")[2] for line in classifiers] or (metadata["License"] or "").splitlines()[:1]
    return [{"license": {"name": name}} for name in names]


def debian_component(deb: Path) -> dict[str, Any]:
    fields = ["dpkg-deb", "--showformat=${Package} ${Version} ${Architecture}", "--show", str(deb)]
    shown = subprocess.run(fields, check=True, capture_output=True, text=True)  # noqa: S603
    name, version, architecture = shown.stdout.split()
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}&distro=debian-12"
    return component(deb, name, version, purl, [])


def component(file: Path, name: str, version: str, purl: str, licences: list[dict[str, Any]]) -> dict[str, Any]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return found | {"hashes": [{"alg": "SHA-256", "content": digest}]} | ({"licenses": licences} if licences else {})


if __name__ == "__main__":
    main()
