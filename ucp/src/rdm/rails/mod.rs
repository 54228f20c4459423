//! Multi-rail transfers over several lanes of a peer, and failover of lost lanes (RDM v4 chapter 11).

pub(super) mod announce;
pub(super) mod failover;
pub(super) mod rail_plan;
pub(super) mod rail_set;
pub(super) mod striping;
