//! Striping of granted data: CTSDATA of a long message, write or read over several lanes (RDM v4 chapter 11).
//! Further lanes carry nothing else: order, grants and ends stay on the first.

use arrayvec::ArrayVec;

use crate::rdm::Engine;
use crate::rdm::flow::window::{self, Segment};
use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, Posted, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_plan::{MAX_RAILS, rails_for};
use crate::rdm::status::PeerError;
use crate::wire::ctl::CtsData;
use crate::wire::{self, Packet, PktType};

/// Consecutive packets on one lane: few enough that a window of 32 keeps four lanes busy.
const LANE_RUN: u64 = 8;

/// Kind of transfer, which selects the setting for the number of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum TransferKind {
    Message,
    Memory,
}

/// The granted and unsent part of an operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdm) struct Granted {
    pub to: PeerId,
    pub recv_id: u32,
    pub at: u64,
    pub window: u64,
    pub total: u64,
    pub kind: TransferKind,
}

pub(in crate::rdm) struct SentSegment {
    lane: PeerId,
    len: usize,
    result: Result<Posted, NotPosted>,
}

/// The lanes that carry one operation, the peer's own first.
type Lanes = ArrayVec<PeerId, MAX_RAILS>;

/// Notes the result of a packet of a grant to `to`. Returns its bytes, or the error. // HOT
#[inline]
pub(in crate::rdm) fn count_granted(
    peers: &mut Peers,
    to: PeerId,
    sent: SentSegment,
) -> Result<usize, SendProgress> {
    let SentSegment { lane, len, result } = sent;
    peers.counters.stats.rare.data_abreast += u64::from(lane != to && result.is_ok());
    match peers.posted(lane, PktType::CTSDATA, result) {
        Ok(()) => Ok(len),
        Err(NotPosted::Peer(fault)) if lane != to => {
            peers.lost_lanes.push((lane, fault));
            Err(SendProgress::Sent)
        }
        Err(refused) => Err(refused.into()),
    }
}

impl Pending {
    /// Sends a packet of a lost further lane over the first. False if not granted data, or the peer is gone.
    // [M11.12]
    #[cold]
    pub(in crate::rdm) fn resend_on_main_lane(
        &mut self,
        peers: &mut Peers,
        lane: PeerId,
        packet: &[u8],
    ) -> bool {
        let Some(main) = peers.table.main_of(lane) else { return false };
        let Ok(Packet::CtsData(hdr, payload)) = wire::parse(packet) else { return false };
        if !peers.table[main].state.is_failed() {
            let hdr = CtsData { connid: window::data_connid(peers, main), ..hdr };
            let mut bytes = vec![0; CtsData::header_len(hdr.connid)];
            hdr.write(&mut bytes);
            bytes.extend_from_slice(payload);
            self.resend_on_lane(peers, main, &bytes);
        }
        true
    }
}

impl Peers {
    /// Returns the further lanes of a peer, which are peers of their own.
    #[inline]
    pub fn further_lanes(&self, to: PeerId) -> &[PeerId] {
        self.table.further_lanes(to)
    }

    /// Whether this peer is a further lane of another.
    pub fn is_further_lane(&self, lane: PeerId) -> bool {
        self.table.get(lane).is_some() && self.table.main_of(lane).is_some()
    }

    /// Sends the next packet of a grant over the next lane with room; `None` if no packet holds data. // HOT
    // [M5.6] [M11.11]
    pub(in crate::rdm) fn post_granted<W: Wire>(
        &self,
        w: &mut W,
        g: Granted,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> Option<SentSegment> {
        let per_packet = window::data_per_packet(w.mtu(g.to));
        let window = usize::try_from(g.window).unwrap_or(usize::MAX);
        let mut send = |lane: PeerId, per_packet: usize| {
            let len = window.min(per_packet);
            let segment = Segment { to: lane, recv_id: g.recv_id, at: g.at, len };
            SentSegment { lane, len, result: segment.send(w, window::data_connid(self, lane), &mut fill) }
        };
        if window == 0 || per_packet == 0 {
            return None;
        }
        if !self.table.has_further(g.to) {
            return Some(send(g.to, per_packet));
        }
        let lanes = lanes_for(self, &g);
        let first = (g.at / (per_packet as u64 * LANE_RUN)) as usize;
        let mut sent = None;
        for n in 0..lanes.len() {
            let lane = lanes[(first + n) % lanes.len()];
            sent = Some(send(lane, per_packet));
            if sent.as_ref().is_some_and(|sent| sent.result != Err(NotPosted::Full)) {
                break;
            }
        }
        sent
    }
}

/// Returns the lanes of an operation: the peer's own, and further ones while there are bytes for each.
// [M11.11]
#[inline(never)]
pub(in crate::rdm) fn lanes_for(peers: &Peers, g: &Granted) -> Lanes {
    let (most, least) = match g.kind {
        TransferKind::Message => (peers.cfg.rndv_rails, peers.cfg.rndv_chunk),
        TransferKind::Memory => (peers.cfg.rma_rails, peers.cfg.rma_chunk),
    };
    let wanted = rails_for(g.total, least, usize::from(most));
    let ready = |lane: &PeerId| !peers.table[*lane].state.has(PeerFlags::BACKED_OFF);
    let further = peers.usable_lanes(g.to).filter(ready);
    [g.to].into_iter().chain(further).take(wanted.min(MAX_RAILS)).collect()
}

impl PeerTable {
    /// Returns the further lanes of a peer, which are peers of their own.
    #[inline]
    pub fn further_lanes(&self, to: PeerId) -> &[PeerId] {
        self.get(to).and_then(|peer| peer.queue.as_ref()).map_or(&[], |queue| &queue.rails)
    }

    /// Whether a peer has further lanes, met or not. // HOT
    #[inline]
    pub(in crate::rdm) fn has_further(&self, to: PeerId) -> bool {
        !self.further_lanes(to).is_empty()
    }

    #[inline]
    pub(in crate::rdm) fn main_of(&self, lane: PeerId) -> Option<PeerId> {
        let main = self[lane].further_lane_of()?;
        self.further_lanes(main).contains(&lane).then_some(main)
    }

    /// Returns the peer whose granted data arrive on this lane: the first lane if it is a further one. // HOT
    // [M11.11]
    #[inline]
    pub(in crate::rdm) fn owner(&self, lane: PeerId) -> PeerId {
        self.main_of(lane).unwrap_or(lane)
    }
}

/// Fails the main peer if a further lane's packet is lost: which bytes it has is unknown.
#[cold]
pub(in crate::rdm) fn fail_main_peer<W: Wire>(e: &mut Engine, w: &mut W, lane: PeerId, fault: PeerError) {
    if e.peers.table[lane].state.has(PeerFlags::UNCONFIRMED)
        && let Some(main) = e.peers.table.main_of(lane)
    {
        e.fail_peer(w, main, fault);
    }
}
