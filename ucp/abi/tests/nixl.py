#!/usr/bin/env python3
"""Two agents of NIXL (PyPI: nixl-cu12) in two processes: READ and WRITE of many lengths, each byte checked, and notifications.

  python3 -m venv DIR && DIR/bin/pip install nixl-cu12 numpy
  LD_PRELOAD=PREFIX/lib/libucp.so.0 UCX_TLS=posix,cma DIR/bin/python ucp/abi/tests/nixl.py
                        PREFIX: where tools/install has put the library. Without LD_PRELOAD: on NIXL's own UCX

No GPU is needed. The last line says how many transfers were checked.
"""

import multiprocessing, os, sys, time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

LENGTHS = [1, 7, 64, 513, 4096, 8929, 65536, (1 << 20) + 1, 16 << 20]
ROUNDS = 5
LIMIT = 60  # seconds of a transfer


def pattern(length, salt):
    return ((numpy.arange(length, dtype=numpy.uint64) * 7 + salt * 131) % 251).astype(numpy.uint8)


def library():
    """The library that carries UCX's functions in this process."""
    with open("/proc/self/maps") as maps:
        found = sorted({line.split()[-1] for line in maps if "libucp" in line})
    return next((path for path in found if path == os.environ.get("LD_PRELOAD")), found[0] if found else "none")


def opened(name):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = numpy.zeros(max(LENGTHS), dtype=numpy.uint8)
    return agent, memory, agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")


def target(pipe):
    agent, memory, registered = opened("target")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    while (asked := pipe.recv()) is not None:
        what, length, salt = asked
        if what == "READ":
            memory[:length] = pattern(length, salt)
            pipe.send(True)
            pipe.recv()
        # The notification comes behind the data.
        until = time.monotonic() + LIMIT
        while b"%d" % salt not in agent.get_new_notifs().get("initiator", []):
            if time.monotonic() > until:
                raise SystemExit(f"no notification of {what} of {length} bytes")
        is_right = what == "READ" or bool((memory[:length] == pattern(length, salt)).all())
        memory[:length] = 0
        pipe.send(is_right)
    agent.deregister_memory(registered)


def main():
    pipe, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(other,), daemon=True)
    process.start()
    agent, memory, registered = opened("initiator")
    metadata, remote = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    checked = 0
    for salt in range(ROUNDS * 2 * len(LENGTHS)):
        what, length = ("READ", "WRITE")[salt % 2], LENGTHS[salt // 2 % len(LENGTHS)]
        pipe.send((what, length, salt))
        if what == "READ":
            assert pipe.recv()
            memory[:length] = 0
        else:
            memory[:length] = pattern(length, salt)
        local = agent.get_xfer_descs([(memory.ctypes.data, length, 0)], "DRAM")
        there = agent.get_xfer_descs([(remote, length, 0)], "DRAM")
        transfer = agent.initialize_xfer(what, local, there, peer, b"%d" % salt)
        state, until = agent.transfer(transfer), time.monotonic() + LIMIT
        while state == "PROC" and time.monotonic() < until:
            state = agent.check_xfer_state(transfer)
        if state != "DONE":
            raise SystemExit(f"{what} of {length} bytes: {state}")
        if what == "READ":
            assert (memory[:length] == pattern(length, salt)).all(), f"READ of {length} bytes"
            pipe.send(True)
        assert pipe.recv(), f"{what} of {length} bytes: other bytes have arrived"
        agent.release_xfer_handle(transfer)
        checked += 1
    pipe.send(None)
    process.join()
    agent.remove_remote_agent(peer)
    agent.deregister_memory(registered)
    if process.exitcode != 0:
        raise SystemExit(f"the target ended with {process.exitcode}")
    print(f"all is well: {checked} transfers over {library()}")


if __name__ == "__main__":
    main()
