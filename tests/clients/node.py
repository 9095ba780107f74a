"""
Programs for Node.js: the tools they need, and their packages, kept in the project's cache.
"""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CACHE = ROOT / ".cache" / "node"
INSTALL_TIMEOUT = 300.0


def tool(name: str, *, purpose: str) -> str:
    """
    The path of ``node`` or ``npm``; fails the test if it isn't there.
    """
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: {purpose}. Install Node.js 20 or later, with npm.", pytrace=False)
    return path


def installed(source: Path) -> Path:
    """
    A directory with ``node_modules`` as ``package.json`` and ``package-lock.json`` in ``source`` name them.
    """
    npm = tool("npm", purpose="it installs the packages of the official TypeScript client")
    manifests = [source / "package.json", source / "package-lock.json"]
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in manifests)).hexdigest()[:16]
    target = CACHE / f"{source.name}-{key}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="installing-", dir=CACHE) as temporary:
        directory = Path(temporary) / "packages"
        directory.mkdir()
        for path in manifests:
            shutil.copy(path, directory)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT)
        if done.returncode:
            pytest.fail(f"npm could not install the packages of {source.name}:\n{done.stderr}", pytrace=False)
        try:
            # Only a whole installation has the final name, and of two at once the first one stays.
            directory.rename(target)
        except OSError:
            if not target.exists():
                raise
    return target
