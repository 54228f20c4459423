//! Low-level transports: short, bcopy, zcopy put, get, active message and atomics over shared memory and EFA SRD.
