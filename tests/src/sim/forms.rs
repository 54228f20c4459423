//! The forms of a send and of a receive: one piece of memory or several; a request, a callback or an id. Used
//! by `step`, `active_messages` and `streams`.

use std::cell::Cell;
use std::rc::Rc;
use ucp::rdm::RecvStatus;
use ucp::select::DeliveryComplete;
use ucp::{
    AmMessage, AmParams, AmProto, AmSend, Ep, Error, Iov, Match, Message, OpParams, OpStatus, RecvRequest,
    RequestId, SendParams, SendRequest, StreamRecvMode, Worker,
};

pub enum SendOp {
    Whole(SendRequest<Vec<u8>>),
    Iov(SendRequest<Vec<Vec<u8>>>),
    Callback(Rc<Cell<Option<Result<(), Error>>>>),
    Am(AmSend<Vec<u8>>),
    AmIov(AmSend<Vec<Vec<u8>>>),
    Copy(SendRequest<Box<[u8]>>),
    /// By id, or ended already; keeps the bytes.
    Id {
        id: Option<RequestId>,
        end: Option<Result<(), Error>>,
        _bytes: Vec<Vec<u8>>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendForm {
    Whole,
    Iov,
    Callback,
    Id,
    /// Borrowed bytes, sent at once or copied: plain tagged messages only, others as `Whole`.
    Immediate,
    /// Detached: no completion is awaited. Only of what no peer refuses, others as `Whole`.
    Detached,
}

fn split(bytes: &[u8], lens: &[usize]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let piece = |len: &usize| {
        let (piece, behind) = rest.split_at(*len);
        rest = behind;
        piece.to_vec()
    };
    lens.iter().map(piece).collect()
}

fn pieces(bufs: &[Vec<u8>]) -> Vec<Iov> {
    bufs.iter().map(|buf| Iov { addr: buf.as_ptr().cast_mut(), len: buf.len() }).collect()
}

fn plain_tag(params: &SendParams) -> Option<u64> {
    params.tag.filter(|_| params.sync == DeliveryComplete::No && params.cq_data.is_none())
}

impl SendOp {
    /// A send that ended in the call, or is detached.
    const ENDED: SendOp = SendOp::Id { id: None, end: Some(Ok(())), _bytes: Vec::new() };

    /// Sends a message; `lens` add up to its length.
    pub fn message(ep: &Ep, form: SendForm, bytes: Vec<u8>, lens: &[usize], params: &SendParams) -> SendOp {
        match form {
            SendForm::Immediate if let Some(tag) = plain_tag(params) => match ep.tag_inject(tag, &bytes) {
                Ok(()) => SendOp::ENDED,
                Err(request) => SendOp::Copy(request),
            },
            SendForm::Detached if params.sync == DeliveryComplete::No => {
                ep.send(bytes, params).detach();
                SendOp::ENDED
            }
            SendForm::Whole | SendForm::Immediate | SendForm::Detached => {
                SendOp::Whole(ep.send(bytes, params))
            }
            SendForm::Iov => SendOp::Iov(ep.send_iov(split(&bytes, lens), params)),
            SendForm::Callback => SendOp::with_callback(ep.send(bytes, params)),
            SendForm::Id => {
                let bufs = split(&bytes, lens);
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let started = unsafe { ep.send_layout_raw(&pieces(&bufs), params) };
                SendOp::started(started, bufs)
            }
        }
    }

    pub fn am(
        ep: &Ep,
        (form, proto): (SendForm, AmProto),
        id: u16,
        header: &[u8],
        bytes: Vec<u8>,
        lens: &[usize],
    ) -> SendOp {
        match form {
            SendForm::Whole | SendForm::Callback | SendForm::Immediate | SendForm::Detached => {
                SendOp::Am(ep.am_send_with(proto, id, header, bytes))
            }
            SendForm::Iov => SendOp::AmIov(ep.am_send_iov(proto, id, header, split(&bytes, lens))),
            SendForm::Id => {
                let bufs = split(&bytes, lens);
                let params = AmParams { proto, ..AmParams::default() };
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let started = unsafe { ep.am_send_layout_raw(id, header, &pieces(&bufs), &params) };
                SendOp::started(started, bufs)
            }
        }
    }

    pub fn stream(ep: &Ep, form: SendForm, bytes: Vec<u8>, lens: &[usize]) -> SendOp {
        match form {
            SendForm::Whole | SendForm::Immediate | SendForm::Detached => {
                SendOp::Whole(ep.stream_send(bytes))
            }
            SendForm::Callback => SendOp::with_callback(ep.stream_send(bytes)),
            SendForm::Iov | SendForm::Id => {
                let bufs = split(&bytes, lens);
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let started = unsafe { ep.stream_send_layout_raw(&pieces(&bufs), &OpParams::default()) };
                SendOp::started(started, bufs)
            }
        }
    }

    fn with_callback(request: SendRequest<Vec<u8>>) -> SendOp {
        let end = Rc::new(Cell::new(None));
        let result = end.clone();
        request.then(move |end, _| result.set(Some(end)));
        SendOp::Callback(end)
    }

    fn started(started: Result<OpStatus<()>, Error>, _bytes: Vec<Vec<u8>>) -> SendOp {
        match started {
            Ok(OpStatus::InProgress(id)) => SendOp::Id { id: Some(id), end: None, _bytes },
            Ok(OpStatus::Done(())) => SendOp::ENDED,
            Err(error) => SendOp::Id { id: None, end: Some(Err(error)), _bytes },
        }
    }

    pub fn is_done(&mut self, worker: &Worker) -> bool {
        match self {
            SendOp::Whole(request) => request.is_done(),
            SendOp::Iov(request) => request.is_done(),
            SendOp::Copy(request) => request.is_done(),
            SendOp::Callback(end) => end.get().is_some(),
            SendOp::Am(send) => send.is_done(),
            SendOp::AmIov(send) => send.is_done(),
            SendOp::Id { id, end, .. } => {
                *end = end.or_else(|| worker.test((*id)?).map(|end| end.map(drop)));
                end.is_some()
            }
        }
    }

    pub fn end(self) -> Option<Result<(), Error>> {
        match self {
            SendOp::Whole(request) => request.test().ok().map(|(end, _)| end),
            SendOp::Iov(request) => request.test().ok().map(|(end, _)| end),
            SendOp::Copy(request) => request.test().ok().map(|(end, _)| end),
            SendOp::Callback(end) => end.get(),
            SendOp::Am(send) => Some(send.wait().0),
            SendOp::AmIov(send) => Some(send.wait().0),
            SendOp::Id { end, .. } => end,
        }
    }

    /// Cancels the send; true: it will end as cancelled. Not all forms can be cancelled.
    pub fn cancel(&self, worker: &Worker) -> bool {
        match self {
            SendOp::Whole(request) => request.cancel(),
            SendOp::Iov(request) => request.cancel(),
            SendOp::Copy(request) => request.cancel(),
            SendOp::Id { id: Some(id), end: None, .. } => worker.cancel(*id),
            SendOp::Callback(_) | SendOp::Am(_) | SendOp::AmIov(_) | SendOp::Id { .. } => false,
        }
    }
}

type RecvResult = Result<RecvStatus, Error>;

pub enum RecvOp {
    Whole(RecvRequest<Box<[u8]>>),
    Iov(RecvRequest<Vec<Box<[u8]>>>),
}

fn zeroed(lens: &[usize]) -> Vec<Box<[u8]>> {
    lens.iter().map(|len| vec![0; *len].into_boxed_slice()).collect()
}

impl RecvOp {
    pub fn post(worker: &Worker, what: Match, lens: &[usize]) -> RecvOp {
        match lens {
            [len] => RecvOp::Whole(worker.recv(what, vec![0; *len].into_boxed_slice())),
            _ => RecvOp::Iov(worker.recv_iov(what, zeroed(lens))),
        }
    }

    pub fn claimed(message: Message, lens: &[usize]) -> RecvOp {
        match lens {
            [len] => RecvOp::Whole(message.recv(vec![0; *len].into_boxed_slice())),
            _ => RecvOp::Iov(message.recv_iov(zeroed(lens))),
        }
    }

    pub fn am_data(message: AmMessage, lens: &[usize]) -> RecvOp {
        match lens {
            [len] => RecvOp::Whole(message.recv(vec![0; *len].into_boxed_slice())),
            _ => RecvOp::Iov(message.recv_iov(zeroed(lens))),
        }
    }

    pub fn stream(ep: &Ep, until: StreamRecvMode, lens: &[usize]) -> RecvOp {
        match (lens, until) {
            ([len], StreamRecvMode::Some) => RecvOp::Whole(ep.stream_recv(vec![0; *len].into_boxed_slice())),
            ([len], StreamRecvMode::WaitAll) => {
                RecvOp::Whole(ep.stream_recv_full(vec![0; *len].into_boxed_slice()))
            }
            _ => RecvOp::Iov(ep.stream_recv_iov(zeroed(lens), until)),
        }
    }

    pub fn is_done(&mut self) -> bool {
        match self {
            RecvOp::Whole(request) => request.is_done(),
            RecvOp::Iov(request) => request.is_done(),
        }
    }

    /// Cancels the receive; true: it will end as cancelled.
    pub fn cancel(&self) -> bool {
        match self {
            RecvOp::Whole(request) => request.cancel(),
            RecvOp::Iov(request) => request.cancel(),
        }
    }

    /// The result and all bytes of a receive that is done.
    pub fn end(self) -> Option<(RecvResult, Box<[u8]>)> {
        match self {
            RecvOp::Whole(request) => request.test().ok(),
            RecvOp::Iov(request) => request.test().ok().map(|(end, bufs)| (end, bufs.concat().into())),
        }
    }
}
