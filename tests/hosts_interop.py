"""The interop matrix between the two hosts of tests/hosts: this project on one, libfabric's EFA provider on the other."""

import os, re, shutil, subprocess, tempfile, time

from hosts_net import slowness

NET = "10.77.0.0/24"
PAGE = "docs/interop.md"
BEGIN, END = "<!-- tests/hosts --write, interop -->", "<!-- end of tests/hosts, interop -->"
# Name, what stands in the table, the network. They run when they are named.
INTEROP = [
    ("interop-veth", "veth, nothing in between", None),
    ("interop-loss", "1 % of the packets lost", {"loss": 0.01}),
]


def missing():
    """What the matrix needs and is not here."""
    header = subprocess.run(["cc", "-E", "-x", "c", "-"], input="#include <rdma/fabric.h>", text=True, capture_output=True)
    absent = [program for program in ("nsenter", "cc") if not shutil.which(program)]
    return absent[0] if absent else "header rdma/fabric.h (libfabric-dev)" if header.returncode else None


def run(row, folder, seed, limit, make):
    """Plays the matrix. Returns its counts; `None` if it cannot be played here."""
    name, _, net = row
    absent = missing()
    if absent:
        print(f"{name:14} not run: there is no {absent}", flush=True)
        return None
    network, start, limit = make(net, seed), time.monotonic(), limit * slowness()
    with tempfile.TemporaryDirectory() as work:
        command = [os.path.join(folder, "interop"), "--launcher", f"nsenter -t {network.hosts[1]} -n -u --",
                   "--set", f"SOFTEFA_NET={NET}", "--set", "SOFTEFA_INSECURE=y"]
        end = network.start(0, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": work})
        try:
            out = end.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            end.terminate()
            out = end.communicate()[0] + f"FAILED nothing more within {limit:.0f} s\n"
        finally:
            end.kill()
            end.wait()
            network.close()
    found = re.search(r"(\d+) played, (\d+) failed, (\d+) messages", out)
    reasons = [line for line in out.splitlines() if line.startswith(("FAILED", "interop:"))]
    played, failed, messages = map(int, found.groups()) if found else (0, 1, 0)
    print("".join(f"{line}\n" for line in reasons), end="")
    seconds = time.monotonic() - start
    print(f"{name:14} {played} cells and situations, {failed} failed, {messages} messages, {seconds:.1f} s", flush=True)
    return {"played": played, "failed": failed, "messages": messages, "reasons": reasons, "passed": failed == 0, "seconds": seconds}


def table(rows):
    """Lines for docs/interop.md."""
    ran = [(row, got) for row, got in rows if got]
    lines = ["| Network | Cells and situations | Passed | Failed | Messages checked |", "|---|---|---|---|---|"]
    lines += [f"| {row[1]} | {got['played']} | {got['played'] - got['failed']} | {got['failed']} | {got['messages']} |"
              for row, got in ran]
    reasons = [f"* {line}" for _, got in ran for line in got["reasons"]]
    return lines + [""] * bool(reasons) + reasons
