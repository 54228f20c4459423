//! Cells of messages: each size expected, unexpected and in pieces, then many at a time. Called by `run` for
//! every cell; passes one-sided cells on to `onesided`.

use super::matrix::{Cell, Contact, Delivery, Kind, Nic, Protocol, What};
use super::onesided;
use super::pair::{Msg, Pair, PlayError};
use super::process::Stack;

pub fn play(pair: &mut Pair, cell: &Cell) -> Result<usize, PlayError> {
    let mut messages = 0;
    match cell.contact {
        Contact::First => {
            for (nth, len) in cell.sizes().into_iter().enumerate() {
                pair.connect()?;
                messages += match cell.what {
                    What::Message(..) => first(pair, cell, len, nth)?,
                    _ => onesided::one(pair, cell, len, nth)?,
                };
                pair.disconnect()?;
            }
        }
        Contact::After => {
            pair.connect()?;
            exchange_handshakes(pair, cell)?;
            messages += match cell.what {
                What::Message(..) => {
                    for (nth, len) in cell.sizes().into_iter().enumerate() {
                        let msg = message(pair, cell, len, nth);
                        pair.expected(cell.sender, &msg, 0)?;
                        let msg = message(pair, cell, len, nth + 1);
                        pair.unexpected(cell.sender, &msg)?;
                        let msg = Msg { parts: 1 + nth % 4, ..message(pair, cell, len, nth) };
                        pair.expected(cell.sender, &msg, 0)?;
                    }
                    3 * cell.sizes().len() + burst(pair, cell)?
                }
                _ => onesided::many(pair, cell)?,
            };
            pair.disconnect()?;
        }
    }
    Ok(messages)
}

/// Sends the first message between two endpoints, alternately expected and unexpected.
fn first(pair: &mut Pair, cell: &Cell, len: usize, nth: usize) -> Result<usize, PlayError> {
    let msg = message(pair, cell, len, nth);
    if nth.is_multiple_of(2) {
        pair.expected(cell.sender, &msg, 100)?;
    } else {
        pair.unexpected(cell.sender, &msg)?;
    }
    Ok(1)
}

/// The `nth` message of a cell. Every other one carries data if that does not change the protocol.
fn message(pair: &mut Pair, cell: &Cell, len: usize, nth: usize) -> Msg {
    let eager = matches!(cell.what, What::Message(Protocol::Eager, ..));
    let room = !eager || len + 8 <= cell.eager_max();
    let mut msg = pair.msg(len);
    msg.tag = (cell.what.kind() == Some(Kind::Tagged)).then_some(msg.nth << 32 | 0xfeed);
    // libfabric 1.17 puts only the lower half of the data of most sends on the wire.
    let data = if cell.sender == Stack::Ours { 0xda7a_0000_0000_0000 } else { 0xda7a_0000 };
    msg.data = (room && nth % 2 == 1).then_some(data | msg.nth);
    msg.how = if cell.what.delivery() == Delivery::Complete { "dc" } else { "" };
    msg
}

fn exchange_handshakes(pair: &mut Pair, cell: &Cell) -> Result<(), PlayError> {
    for from in [cell.sender, cell.sender.other(), cell.sender] {
        let mut msg = pair.msg(8);
        msg.tag = (cell.what.kind() == Some(Kind::Tagged)).then_some(7);
        pair.expected(from, &msg, 0)?;
    }
    // A HANDSHAKE may be held back longer than messages.
    std::thread::sleep(std::time::Duration::from_millis(20));
    Ok(())
}

fn burst(pair: &mut Pair, cell: &Cell) -> Result<usize, PlayError> {
    let count = if cell.what.nic() == Nic::Packets { 24 } else { 8 };
    let lens: Vec<usize> = cell.sizes().into_iter().cycle().take(count).collect();
    let mut all = Vec::new();
    for (nth, len) in lens.into_iter().enumerate() {
        all.push(message(pair, cell, len, nth));
    }
    let mut receives = all.clone();
    if cell.what.kind() == Some(Kind::Tagged) {
        receives.reverse();
    }
    let to = cell.sender.other();
    // A third of them are unexpected.
    let early = receives.len() * 2 / 3;
    for msg in &receives[..early] {
        pair.post_recv(to, msg, msg.len)?;
    }
    for msg in &all {
        pair.send(cell.sender, msg)?;
    }
    for msg in &receives[early..] {
        pair.post_recv(to, msg, msg.len)?;
    }
    for msg in &all {
        pair.received(to, msg)?;
        pair.sent(cell.sender, msg)?;
    }
    Ok(all.len())
}
