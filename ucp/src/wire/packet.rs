//! A parsed packet of any type: copies of the headers, and the payload in place.

use super::base::PktType;
use super::ctl::{AtomRsp, Cts, CtsData, Eor, PeerError, ReadNack, ReadRsp, Receipt};
use super::handshake::Handshake;
use super::opt::Opts;
use super::rta::Rta;
use super::rtm::Rtm;
use super::rtr::Rtr;
use super::rtw::Rtw;

/// A checked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// Request to message.
    Rtm(Rtm<'a>),
    /// Request to write.
    Rtw(Rtw<'a>),
    /// Request to read.
    Rtr(Rtr),
    /// Request for an atomic, and its operands.
    Rta(Rta, &'a [u8]),
    /// A window.
    Cts(Cts),
    /// Data within a window.
    CtsData(CtsData, &'a [u8]),
    /// Data of an emulated read.
    ReadRsp(ReadRsp, &'a [u8]),
    /// End of read.
    Eor(Eor),
    /// Result of an atomic.
    AtomRsp(AtomRsp, &'a [u8]),
    /// Features of the sender.
    Handshake(Handshake),
    /// Delivery complete.
    Receipt(Receipt),
    /// The receiver cannot read.
    ReadNack(ReadNack),
    /// The other side failed.
    PeerError(PeerError),
}

impl<'a> Packet<'a> {
    /// Packet type, as it was when the packet was parsed: its memory may have changed since.
    // HOT
    #[inline]
    pub fn ty(&self) -> PktType {
        match self {
            Packet::Rtm(rtm) => rtm.ty,
            Packet::Rtw(rtw) => rtw.ty,
            Packet::Rtr(rtr) => rtr.ty(),
            Packet::Rta(rta, _) => rta.ty(),
            Packet::Cts(_) => PktType::CTS,
            Packet::CtsData(..) => PktType::CTSDATA,
            Packet::ReadRsp(..) => PktType::READRSP,
            Packet::Eor(_) => PktType::EOR,
            Packet::AtomRsp(..) => PktType::ATOMRSP,
            Packet::Handshake(_) => PktType::HANDSHAKE,
            Packet::Receipt(_) => PktType::RECEIPT,
            Packet::ReadNack(_) => PktType::READ_NACK,
            Packet::PeerError(_) => PktType::PEER_ERROR,
        }
    }

    /// Optional headers, if it is a REQ packet.
    #[inline]
    pub fn opts(&self) -> Option<&Opts> {
        match self {
            Packet::Rtm(rtm) => Some(&rtm.opts),
            Packet::Rtw(rtw) => Some(&rtw.opts),
            Packet::Rtr(rtr) => Some(&rtr.opts),
            Packet::Rta(rta, _) => Some(&rta.opts),
            _ => None,
        }
    }

    /// The connid by which the sender names itself: from the connid header, the multi-use word, or the raw
    /// address.
    #[inline]
    pub fn sender_connid(&self) -> Option<u32> {
        match self {
            Packet::Rtm(rtm) => rtm.opts.sender_connid(),
            Packet::Rtw(rtw) => rtw.opts.sender_connid(),
            Packet::Rtr(rtr) => rtr.opts.sender_connid(),
            Packet::Rta(rta, _) => rta.opts.sender_connid(),
            Packet::Cts(cts) => cts.connid,
            Packet::CtsData(ctsdata, _) => ctsdata.connid,
            Packet::ReadRsp(readrsp, _) => readrsp.connid,
            Packet::Eor(eor) => eor.connid,
            Packet::AtomRsp(atomrsp, _) => atomrsp.connid,
            Packet::Handshake(handshake) => handshake.connid,
            Packet::Receipt(receipt) => receipt.connid,
            Packet::ReadNack(nack) => nack.connid,
            Packet::PeerError(error) => error.connid,
        }
    }

    /// The place in the sender's order, if it has one.
    #[inline]
    pub fn msg_id(&self) -> Option<u32> {
        match self {
            Packet::Rtm(rtm) => Some(rtm.msg_id),
            Packet::Rta(rta, _) => Some(rta.msg_id),
            _ => None,
        }
    }

    /// Application bytes, empty if the type carries none.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Packet::Rtm(Rtm { payload, .. }) | Packet::Rtw(Rtw { payload, .. }) => payload,
            Packet::Rta(_, payload)
            | Packet::CtsData(_, payload)
            | Packet::ReadRsp(_, payload)
            | Packet::AtomRsp(_, payload) => payload,
            _ => &[],
        }
    }
}
