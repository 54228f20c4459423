//! Addresses of nodes: numbers that name host and port without a directory, and the settings that choose
//! them. Texts are parsed and chosen from here; interfaces are listed by the owner.
//!
//! * `node`: the number. * `table`: network addresses of nodes. * `settings`: network, port range, address.

mod node;
mod settings;
mod table;

pub use node::Node;
pub use settings::{Advertised, BadSetting, NetSpec, PortRange};
pub use table::NodeTable;
