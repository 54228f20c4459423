//! Addresses and key that sides exchange before they connect.

use serde::{Deserialize, Serialize};
use tools_common::boot::HexBytes;

#[derive(Clone, Serialize, Deserialize)]
pub struct Setup {
    pub device: HexBytes,
    pub iface: HexBytes,
    pub rkey: HexBytes,
    pub addr: u64,
}
