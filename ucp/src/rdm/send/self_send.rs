//! Messages to this worker itself: copied straight into a posted receive, without a packet. Without a posted
//! receive a message goes over the loopback transport, as any other. Keeps no message.

use crate::rdm::ids::PeerId;
use crate::rdm::io::ReceiveSink;
use crate::rdm::op::ContigBuf;
use crate::rdm::protocols::eager;
use crate::rdm::recv::receives::Receives;
use crate::wire::MsgClass;
use crate::wire::rtm::Short;

impl Receives<'_> {
    /// Delivers a tagged message to a posted receive of this worker. False, and nothing has happened: no
    /// receive is posted for it, or an earlier message has not arrived yet.
    // HOT
    #[inline(always)]
    pub fn recv_from_self<I: ReceiveSink>(
        &mut self,
        to: &mut I,
        own: PeerId,
        tag: u64,
        message: ContigBuf,
    ) -> bool {
        let Some(peer) = self.peers.table.get(own) else { return false };
        // The first message introduces the two ends.
        let is_ready = peer.state.is_ready_for_self();
        // An address that a worker of this name had before us has another connid.
        if !is_ready || peer.next_tx != peer.next_rx || peer.addr.connid != peer.own_connid {
            return false;
        }
        let hdr = Short { msg_id: peer.next_rx, tag, connid: peer.own_connid, class: MsgClass::Message };
        if !eager::recv_matched(self.recvs, self.peers, self.pending, to, own, &hdr, message.bytes()) {
            return false;
        }
        self.peers.counters.stats.rare.passed_to_self += 1;
        true
    }
}
