//! Receives of ours into several pieces of memory, by every protocol that libfabric sends with. Played by `scenes`.

use crate::interop::cells::Nic;
use crate::interop::end::Player;
use crate::interop::pair::{Fault, Msg, Pair};

/// One packet, several, windows, read.
const LENS: [usize; 4] = [100, 20_000, 300_000, (1 << 20) + 7];

/// Each length into one, three and seven pieces of odd lengths: expected or not, tagged or not, confirmed or not; then more than
/// the pieces hold.
pub fn scattered(pair: &mut Pair, to: Player) -> Result<(), Fault> {
    let from = to.other();
    for (key, value) in Nic::Reads.settings() {
        pair.set(key, value);
    }
    pair.restart(from)?;
    pair.restart(to)?;
    pair.meet()?;
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
            super::cut_short(pair, to, &msg, room, early)?;
        }
    }
    pair.part()
}
