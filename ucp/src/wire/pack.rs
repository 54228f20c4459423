//! Writes a parsed packet again, payload included. Called by tools and tests; unknown flags are not written.

use super::packet::Packet;
use super::rtm::{self, Delivery, Rtm, RtmBody};
use super::rtw::{self, Rtw, RtwBody};

impl Packet<'_> {
    /// Writes headers and payload to `buf`; returns the length of the packet. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let at = match self {
            Packet::Rtm(rtm) => write_rtm(rtm, buf),
            Packet::Rtw(rtw) => write_rtw(rtw, buf),
            Packet::Rtr(rtr) => rtr.write(buf),
            Packet::Rta(rta, _) => rta.write(buf),
            Packet::Cts(cts) => cts.write(buf),
            Packet::CtsData(hdr, _) => hdr.write(buf),
            Packet::ReadRsp(hdr, _) => hdr.write(buf),
            Packet::Eor(eor) => eor.write(buf),
            Packet::AtomRsp(hdr, _) => hdr.write(buf),
            Packet::Handshake(handshake) => handshake.write(buf),
            Packet::Receipt(receipt) => receipt.write(buf),
            Packet::ReadNack(nack) => nack.write(buf),
            Packet::PeerError(error) => error.write(buf),
        };
        let payload = self.payload();
        buf[at..at + payload.len()].copy_from_slice(payload);
        at + payload.len()
    }
}

fn write_rtm(rtm: &Rtm<'_>, buf: &mut [u8]) -> usize {
    let &Rtm { msg_id, tag, receipt, opts, .. } = rtm;
    match rtm.body {
        RtmBody::Eager => rtm::Eager { msg_id, tag, receipt, opts }.write(buf),
        RtmBody::Medium { msg_length, seg_offset } => {
            rtm::Medium { msg_id, tag, receipt, msg_length, seg_offset, opts }.write(buf)
        }
        RtmBody::LongCts { msg_length, send_id, credit_request, cause } => {
            let delivery = delivery(receipt);
            rtm::LongCts { msg_id, tag, delivery, msg_length, send_id, credit_request, cause, opts }
                .write(buf)
        }
        RtmBody::LongRead { msg_length, send_id, read_iov } => {
            rtm::LongRead { msg_id, tag, msg_length, send_id, read_iov, opts }.write(buf)
        }
        RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov } => {
            rtm::RuntRead { msg_id, tag, msg_length, send_id, seg_offset, runt_length, read_iov, opts }
                .write(buf)
        }
    }
}

fn write_rtw(rtw: &Rtw<'_>, buf: &mut [u8]) -> usize {
    let &Rtw { rma_iov, receipt, opts, .. } = rtw;
    match rtw.body {
        RtwBody::Eager => rtw::Eager { rma_iov, receipt, opts }.write(buf),
        RtwBody::LongCts { msg_length, send_id, credit_request } => {
            let delivery = delivery(receipt);
            rtw::LongCts { rma_iov, delivery, msg_length, send_id, credit_request, opts }.write(buf)
        }
        RtwBody::LongRead { msg_length, send_id, read_iov } => {
            rtw::LongRead { rma_iov, msg_length, send_id, read_iov, opts }.write(buf)
        }
    }
}

fn delivery(receipt: Option<u32>) -> Delivery {
    if receipt.is_some() { Delivery::Complete } else { Delivery::Plain }
}
