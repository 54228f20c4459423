//! Addresses and key that sides exchange before they connect. Used by tests of two sides and of groups.

use serde::{Deserialize, Serialize};
use tools_common::boot::HexBytes;

/// What one side tells the other before they connect.
#[derive(Clone, Serialize, Deserialize)]
pub struct Setup {
    pub device: HexBytes,
    pub iface: HexBytes,
    pub rkey: HexBytes,
    pub addr: u64,
}
