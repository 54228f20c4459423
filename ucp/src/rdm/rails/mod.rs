//! Multi-rail: long transfers over several lanes of a peer, and failover when a lane is lost (RDM v4 chapter
//! 11).

pub(super) mod failover;
pub(super) mod rail_plan;
pub(super) mod rail_set;
pub(super) mod striping;
