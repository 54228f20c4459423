//! Unmodified programs on the software device, started by `softefa`: libfabric, MPI, and verbs programs of
//! our own; what the launcher and its doctor say. One binary: tests that wait let others run.

mod edges;
mod launcher;
mod limits;
mod mpi;
mod verbs_programs;
