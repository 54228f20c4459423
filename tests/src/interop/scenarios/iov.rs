//! Receives of ours into several pieces of memory, by every protocol of libfabric's.

use crate::interop::matrix::Nic;
use crate::interop::pair::{Msg, Pair, PlayError};
use crate::interop::process::Stack;

const LENS: [usize; 4] = [100, 20_000, 300_000, (1 << 20) + 7];

/// Each length into one, three and seven odd pieces: expected or not, tagged or not; then truncated.
pub fn into_pieces(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let from = to.other();
    for (key, value) in Nic::Reads.settings() {
        pair.set(key, value);
    }
    pair.restart(from)?;
    pair.restart(to)?;
    pair.connect()?;
    for sender in [from, to] {
        let hello = pair.msg(8);
        pair.expected(sender, &hello, 0)?;
    }
    for (len, pieces) in LENS.into_iter().flat_map(|len| [1, 3, 7].map(|pieces| (len, pieces))) {
        for (tag, how) in [(None, ""), (None, "dc"), (Some(5), ""), (Some(5), "dc")] {
            let msg = Msg { tag, how, pieces, ..pair.msg(len) };
            pair.expected(from, &msg, 77)?;
            let msg = Msg { tag, how, pieces, ..pair.msg(len) };
            pair.unexpected(from, &msg)?;
        }
        for (room, early) in [(len - 1, true), (len / 2, false)] {
            let msg = Msg { tag: Some(5), pieces, ..pair.msg(len) };
            super::receive_truncated(pair, to, &msg, room, early)?;
        }
    }
    pair.disconnect()
}
