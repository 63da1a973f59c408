"""Two network namespaces that stand for two hosts."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[tuple[str, str]]]:
    """Two (namespace, interface) joined by a cable, with the addresses 10.213.7.1 and .2; skips where the machine does not allow them."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the `ip` program (iproute2)")
    tag = f"mw{os.getpid()}"
    names = [(f"{tag}h{host}", f"{tag}v{host}"[:15]) for host in (0, 1)]
    try:
        for namespace, _ in names:
            made = ip("netns", "add", namespace)
            if made.returncode:
                pytest.skip(f"this machine does not allow network namespaces: {made.stderr.strip()}")
        commands = [["link", "add", names[0][1], "netns", names[0][0], "type", "veth", "peer", "name", names[1][1], "netns", names[1][0]]]
        for host, (namespace, interface) in enumerate(names):
            commands.append(["-n", namespace, "addr", "add", f"10.213.7.{host + 1}/24", "dev", interface])
            commands += [["-n", namespace, "link", "set", name, "up"] for name in (interface, "lo")]
        for command in commands:
            done = ip(*command)
            if done.returncode:
                pytest.skip(f"this machine does not allow virtual cables: ip {' '.join(command)}: {done.stderr.strip()}")
        yield names
    finally:
        for namespace, _ in names:
            ip("netns", "del", namespace)
