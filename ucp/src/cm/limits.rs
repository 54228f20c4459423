//! Limits of exchanges: their time, and their number.

use std::net::IpAddr;
use std::time::Duration;

/// Limits by configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CmConfig {
    /// Longest exchange (`UCX_CM_TIMEOUT`).
    pub(crate) timeout: Duration,
    /// Most exchanges of a worker's listeners that are not finished (`UCX_CM_MAX_PENDING`).
    pub(crate) max_pending: usize,
}

impl Default for CmConfig {
    fn default() -> CmConfig {
        CmConfig { timeout: Duration::from_secs(60), max_pending: 128 }
    }
}

/// Exchange to be dropped so that another may begin: the oldest of the client host that has the most of them.
/// A client that opens many harms itself first. `all` is in order of age.
pub(super) fn victim<I: Copy>(all: impl Iterator<Item = (I, IpAddr)> + Clone) -> Option<I> {
    let mut most: Option<(usize, I)> = None;
    let mut seen: Vec<IpAddr> = Vec::new();
    for (id, host) in all.clone() {
        if seen.contains(&host) {
            continue;
        }
        seen.push(host);
        let count = all.clone().filter(|(_, other)| *other == host).count();
        if most.is_none_or(|(than, _)| count > than) {
            most = Some((count, id));
        }
    }
    most.map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_with_the_most_exchanges_loses_its_oldest() {
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let all = [(1, host(1)), (2, host(2)), (3, host(2)), (4, host(1)), (5, host(2)), (6, host(3))];
        assert_eq!(victim(all.into_iter()), Some(2));
        assert_eq!(victim(all.into_iter().filter(|(_, of)| *of != host(2))), Some(1));
        assert_eq!(victim(std::iter::empty::<(u8, IpAddr)>()), None);
    }
}
