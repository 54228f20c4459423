//! The process that is ended: does what it is asked over the line, and stands still in between.

use super::op::How;
use super::side::Side;
use super::{Ask, Role};
use crate::partner::Partner;
use std::time::Duration;

/// How long it stands still before it takes the other for dead.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs until it is told to leave, or killed. `words`: transport, directory of sockets, and as
/// JSON operation and role.
pub fn run(words: &[String]) {
    let [wire, dir, how, role] = words else { panic!("victim WIRE DIR HOW ROLE, not {words:?}") };
    let (how, role): (How, Role) = (serde_json::from_str(how).unwrap(), serde_json::from_str(role).unwrap());
    let mut line = Partner::parent();
    let mut side = Side::open(wire, dir, how);
    line.send(&side.card()).unwrap();
    side.connect(&line.recv(PATIENCE).unwrap());
    // Who is told nothing any more has lost the other.
    while let Ok(ask) = line.recv(PATIENCE) {
        let events = match ask {
            Ask::Meet => {
                side.meet();
                1
            }
            Ask::Start => {
                side.start(how, role);
                1
            }
            Ask::Turn => side.turn(),
            Ask::Close(how) => {
                side.close(how);
                1
            }
            Ask::Leave => return,
        };
        if line.send(&(events, side.place())).is_err() {
            return;
        }
    }
}
