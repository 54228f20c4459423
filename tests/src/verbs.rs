//! The libibverbs device for the suites: what `UCX_NET_DEVICES` names, or the first.

use ucs::config::Source;

/// Name of the device. Panics if there is none, with advice.
pub fn device() -> String {
    let wanted = std::env::var("UCX_NET_DEVICES").ok();
    let found = uct::any::resources(&Source::empty()).expect("devices can be listed");
    // Devices of libibverbs have a port in their names.
    let mut verbs = found.into_iter().map(|r| r.dev).filter(|dev| dev.contains(':'));
    let device = verbs.find(|dev| wanted.as_ref().is_none_or(|name| name == dev));
    device.expect("no EFA device in libibverbs: run this under `softefa run` (`tests/run verbs` does)")
}
