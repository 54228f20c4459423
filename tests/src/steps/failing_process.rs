//! The process that fails: executes commands of the observer, and stands still in between.

use super::op::Op;
use super::side::Side;
use super::{Command, Role};
use crate::partner::Partner;
use std::time::Duration;

/// Time without a command after which the observer is taken for dead.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs until told to exit, or killed. `words`: transport, socket directory, operation and role as JSON.
pub fn run(words: &[String]) {
    let [wire, dir, op, role] = words else { panic!("failing WIRE DIR HOW ROLE, not {words:?}") };
    let (op, role): (Op, Role) = (serde_json::from_str(op).unwrap(), serde_json::from_str(role).unwrap());
    let mut driver = Partner::parent();
    let mut side = Side::open(wire, dir, op);
    driver.send(&side.peer_info()).unwrap();
    side.connect(&driver.recv(TIMEOUT).unwrap());
    while let Ok(ask) = driver.recv(TIMEOUT) {
        let events = match ask {
            Command::Exchange => {
                side.exchange();
                1
            }
            Command::Start => {
                side.start(op, role);
                1
            }
            Command::Progress => side.progress_once(),
            Command::Close(closing) => {
                side.close(closing);
                1
            }
            Command::Exit => return,
        };
        if driver.send(&(events, side.progress())).is_err() {
            return;
        }
    }
}
