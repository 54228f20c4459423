//! Zero-copy receivers: libfabric's, in releases that have the mode, to which ours sends without headers; and
//! ours, to which other releases send packets.

use crate::interop::pair::{Msg, Pair, PlayError, wrong};
use crate::interop::process::Stack;

/// Whether libfabric has the mode with a queue pair of its own: from 1.22 up to 2.5.
pub fn exists(release: (u64, u64)) -> bool {
    ((1, 22)..(2, 6)).contains(&release)
}

/// HANDSHAKE bit by which a receiver asks for it.
const USER_RECV_QP: u64 = 1 << 7;

/// Messages of every length, with and without data, expected and not, or rejected; and back.
pub fn headerless(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    // Messages sent before the HANDSHAKE has come would be lost.
    pair.set("UCX_UNTAGGED_WAIT", "y");
    pair.restart(to.other())?;
    let ours = pair.open(Stack::Ours)?;
    let opened = pair.end(to).step("open messages")?;
    let theirs = opened.word(1).unwrap_or("").to_owned();
    pair.introduce(&ours, &theirs)?;
    for (nth, len) in [8, 0, 1, 31, 32, 33, 100, 4096, 8000].into_iter().enumerate() {
        let msg = Msg { data: (nth % 2 == 1).then_some(0xda7a_0000 + nth as u64), ..pair.msg(len) };
        // libfabric takes no empty receive in this mode.
        pair.expected(to.other(), &msg, 1 + 16 * (nth % 3))?;
        let late = Msg { data: msg.data, ..pair.msg(len) };
        pair.send(to.other(), &late)?;
        super::pause();
        pair.post_recv(to, &late, len + 1)?;
        pair.received(to, &late)?;
        pair.sent(to.other(), &late)?;
    }
    let line = pair.end(Stack::Ours).step("features")?;
    if line.number_at(1).is_none_or(|word| word & USER_RECV_QP == 0) {
        return Err(wrong(to, "does not receive without a copy", &line));
    }
    let burst: Vec<Msg> = (0..24).map(|n| pair.msg(40 * n)).collect();
    for msg in &burst {
        pair.post_recv(to, msg, msg.len + 1)?;
    }
    for msg in &burst {
        pair.send(to.other(), msg)?;
    }
    for msg in &burst {
        pair.received(to, msg)?;
        pair.sent(to.other(), msg)?;
    }
    let tagged = Msg { tag: Some(1), ..pair.msg(8) };
    let confirmed = Msg { how: "dc", ..pair.msg(8) };
    let wide = Msg { data: Some(1 << 32), ..pair.msg(8) };
    let long = pair.msg(100_000);
    for msg in [tagged, confirmed, wide, long] {
        pair.send(to.other(), &msg)?;
        match pair.sent(to.other(), &msg) {
            Err(PlayError::Wrong { .. }) => {}
            Ok(()) => {
                return Err(PlayError::Wire(format!("{msg:?} was sent to an end that does not take it")));
            }
            Err(error) => return Err(error),
        }
    }
    for len in [0, 100, 8000] {
        let msg = pair.msg(len);
        pair.expected(to, &msg, 0)?;
    }
    pair.disconnect()
}

/// Ours receives packets and headerless messages of libfabric into posted receives.
pub fn in_place(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.set("UCX_ZCOPY_RECV", "y");
    pair.restart(to)?;
    let ours = pair.open(Stack::Ours)?;
    let from = to.other();
    let opened = match exists(pair.release()?) {
        true => pair.end(from).step("open messages")?,
        false => pair.end(from).step("open")?,
    };
    let theirs = opened.word(1).unwrap_or("").to_owned();
    pair.introduce(&ours, &theirs)?;
    for (nth, len) in [8, 0, 1, 31, 32, 33, 100, 4096, 8000].into_iter().enumerate() {
        let msg = Msg { data: (nth % 2 == 1).then_some(0xda7a_0000 + nth as u64), ..pair.msg(len) };
        pair.expected(from, &msg, 1 + 16 * (nth % 3))?;
        let late = Msg { data: msg.data, ..pair.msg(len) };
        pair.send(from, &late)?;
        super::pause();
        pair.post_recv(to, &late, len + 1)?;
        pair.received(to, &late)?;
        pair.sent(from, &late)?;
    }
    // A libfabric without the mode sends all in packets; others only until our HANDSHAKE has come.
    let line = pair.end(to).step("passed")?;
    let passed = line.number_at(1);
    match pair.release()? {
        release if release >= (1, 22) && passed.is_none_or(|passed| passed > 6) => {
            Err(wrong(to, "packets came in spite of the HANDSHAKE", &line))
        }
        release if release < (1, 22) && passed != Some(18) => Err(wrong(to, "was sent no packets", &line)),
        _ => pair.disconnect(),
    }
}
