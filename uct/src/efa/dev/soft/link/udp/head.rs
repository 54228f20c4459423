//! The head of a fragment: 32 bytes, the same for every operation, little-endian and read in place.

use super::super::TryOutcome;
use crate::efa::dev::{DevStatus, QpKind};
use usnic::{HEAD, Head};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Operations.
pub(super) mod op {
    /// A message for a posted receive.
    pub const SEND: u8 = 1;
    /// An RDMA write.
    pub const WRITE: u8 = 2;
    /// A request for an RDMA read; `arg` is its length.
    pub const READ: u8 = 3;
    /// The bytes of an RDMA read; `token` is the request's.
    pub const READ_DATA: u8 = 4;
    /// Outcomes of requests, as [`super::Response`]s.
    pub const RESPONSES: u8 = 5;
}

/// Bits of [`OpHead::flags`].
mod flag {
    pub const IMM: u8 = 1;
    pub const UD: u8 = 2;
    /// A message with a response: `rkey` is its token, `raddr` its code.
    pub const RESPONSE: u8 = 4;
}

/// Feature of a device: it takes a response in the head of a message.
pub(super) const RESPONSE_IN_HEAD: u8 = 1;

/// Head of a fragment.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct OpHead {
    pub op: u8,
    flags: u8,
    /// Queue pair of the requester.
    pub src_qpn: U16,
    /// Queue pair of the target.
    pub dst_qpn: U16,
    zero: U16,
    pub qkey: U32,
    /// Name of the request, which its outcome repeats.
    pub token: U32,
    pub rkey: U32,
    pub raddr: U64,
    /// Immediate data; of a read its length.
    pub arg: U32,
}

const _: () = assert!(size_of::<OpHead>() == HEAD);

impl OpHead {
    /// The head of an operation that concerns no queue pair.
    pub fn new(op: u8, token: u32) -> OpHead {
        OpHead {
            op,
            token: token.into(),
            ..OpHead::read_from_bytes(&[0; HEAD]).unwrap_or_else(|_| unreachable!())
        }
    }

    pub fn with_imm(mut self, imm: Option<u32>) -> OpHead {
        if let Some(imm) = imm {
            self.flags |= flag::IMM;
            self.arg.set(imm);
        }
        self
    }

    pub fn imm(&self) -> Option<u32> {
        (self.flags & flag::IMM != 0).then(|| self.arg.get())
    }

    /// Adds a response to the head of a message.
    pub fn with_response(mut self, response: Response) -> OpHead {
        self.flags |= flag::RESPONSE;
        self.rkey = response.token;
        self.raddr.set(response.code.get().into());
        self
    }

    /// The response in the head of a message.
    pub fn response(&self) -> Option<Response> {
        let code = u32::try_from(self.raddr.get()).unwrap_or(u32::MAX).into();
        (self.op == op::SEND && self.flags & flag::RESPONSE != 0)
            .then_some(Response { token: self.rkey, code })
    }

    pub fn with_kind(mut self, kind: QpKind) -> OpHead {
        if kind == QpKind::Ud {
            self.flags |= flag::UD;
        }
        self
    }

    pub fn kind(&self) -> QpKind {
        if self.flags & flag::UD != 0 { QpKind::Ud } else { QpKind::Srd }
    }

    pub fn bytes(&self) -> Head {
        let mut head = [0; HEAD];
        head.copy_from_slice(self.as_bytes());
        head
    }

    pub fn of(head: &Head) -> OpHead {
        OpHead::read_from_bytes(head).unwrap_or_else(|_| OpHead::new(0, 0))
    }
}

/// Operation of a fragment, as text: its name, queue pairs and token. `None`: no device sends it.
pub fn describe(head: &Head) -> Option<String> {
    let head = OpHead::of(head);
    let name = match head.op {
        op::SEND => "SEND",
        op::WRITE => "WRITE",
        op::READ => "READ",
        op::READ_DATA => return Some(format!("READ_DATA of {:#x}", head.token.get())),
        op::RESPONSES => return Some("RESPONSES".into()),
        _ => return None,
    };
    let response =
        head.response().map_or_else(String::new, |it| format!(", with RESPONSE on {:#x}", it.token()));
    let (token, from, to) = (head.token.get(), head.src_qpn.get(), head.dst_qpn.get());
    Some(format!("{name} {token:#x}, qp {from} > {to}{response}"))
}

/// Outcome of a request at its target.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Response {
    token: U32,
    code: U32,
}

const NOT_READY: u32 = 0x100;
const BUSY: u32 = 0x101;

impl Response {
    pub const LEN: usize = size_of::<Response>();

    pub fn new(token: u32, outcome: TryOutcome) -> Response {
        let code = match outcome {
            TryOutcome::Done(status) => u8::from(status).into(),
            TryOutcome::NotReady => NOT_READY,
            TryOutcome::Busy | TryOutcome::Partial(_) | TryOutcome::Pending(_) => BUSY,
        };
        Response { token: token.into(), code: code.into() }
    }

    pub fn token(&self) -> u32 {
        self.token.get()
    }

    /// The outcome; a code that no device has is an invalid response.
    pub fn outcome(&self) -> TryOutcome {
        match self.code.get() {
            NOT_READY => TryOutcome::NotReady,
            BUSY => TryOutcome::Busy,
            code => {
                let status = u8::try_from(code).ok().and_then(|code| DevStatus::try_from(code).ok());
                TryOutcome::Done(status.unwrap_or(DevStatus::BadStatus))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_head() {
        let mut head = OpHead::new(op::WRITE, 0x0d0c_0b0a).with_imm(Some(7)).with_kind(QpKind::Ud);
        head.src_qpn.set(0x0201);
        head.dst_qpn.set(0x0403);
        head.qkey.set(0x0807_0605);
        head.rkey.set(9);
        head.raddr.set(0x1122);
        let want = [
            2, 3, 1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 10, 11, 12, 13, 9, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 7,
            0, 0, 0,
        ];
        assert!(head.bytes() == want);
        let back = OpHead::of(&want);
        assert_eq!(
            (back.op, back.imm(), back.kind(), back.token.get()),
            (2, Some(7), QpKind::Ud, 0x0d0c_0b0a)
        );
    }

    #[test]
    fn a_message_takes_a_response_along() {
        let response = Response::new(0x0d0c_0b0a, TryOutcome::NotReady);
        let head = OpHead::new(op::SEND, 5).with_imm(Some(7)).with_response(response);
        let back = OpHead::of(&head.bytes());
        let got = back.response().map(|it| (it.token(), it.outcome()));
        assert_eq!((got, back.imm()), (Some((0x0d0c_0b0a, TryOutcome::NotReady)), Some(7)));
        assert_eq!(describe(&head.bytes()).unwrap(), "SEND 0x5, qp 0 > 0, with RESPONSE on 0xd0c0b0a");
        // Neither of another operation, nor a code that is too long.
        assert!(OpHead { op: op::WRITE, ..head }.response().is_none());
        let long = OpHead { raddr: (1 << 32).into(), ..head }.response().map(|it| it.outcome());
        assert_eq!(long, Some(TryOutcome::Done(DevStatus::BadStatus)));
    }

    #[test]
    fn outcomes_cross_the_wire() {
        let back = |outcome| Response::new(5, outcome).outcome();
        for code in 0..=20 {
            if let Ok(status) = DevStatus::try_from(code) {
                assert_eq!(back(TryOutcome::Done(status)), TryOutcome::Done(status));
            }
        }
        assert_eq!(
            (back(TryOutcome::NotReady), back(TryOutcome::Busy)),
            (TryOutcome::NotReady, TryOutcome::Busy)
        );
        for code in [16u32, 255, 0x102, u32::MAX] {
            let response = Response { token: 1.into(), code: code.into() };
            assert_eq!(response.outcome(), TryOutcome::Done(DevStatus::BadStatus));
        }
    }
}
