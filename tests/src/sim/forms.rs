//! The forms in which a program starts a send or a receive and hears of its end: of one piece of memory or of several, with a
//! request, with a callback, with an id. Of messages, active messages and streams; started by `act`, `letters` and `brook`, who
//! ask here for ends. Knows nothing of what is sent.

use std::cell::Cell;
use std::rc::Rc;
use ucp::rdm::RecvStatus;
use ucp::select::Sync;
use ucp::{
    AmMessage, AmParams, AmProto, AmSend, Ep, Error, Match, Message, Piece, RecvRequest, RequestId,
    SendParams, SendRequest, Started, Until, Worker,
};

/// A send under way.
pub enum Form {
    /// Of one piece.
    Whole(SendRequest<Vec<u8>>),
    /// Of several.
    Pieces(SendRequest<Vec<Vec<u8>>>),
    /// A callback writes the end down.
    Told(Rc<Cell<Option<Result<(), Error>>>>),
    /// An active message.
    Letter(AmSend<Vec<u8>>),
    /// One of several pieces.
    LetterPieces(AmSend<Vec<Vec<u8>>>),
    /// A copy of the library's.
    Copy(SendRequest<Box<[u8]>>),
    /// By its id, or ended already; the bytes are kept here.
    Id { id: Option<RequestId>, end: Option<Result<(), Error>>, _bytes: Vec<Vec<u8>> },
}

/// Which form is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// One piece, a request.
    Whole,
    /// Pieces of these lengths, a request.
    Pieces,
    /// One piece, a callback.
    Told,
    /// Pieces of these lengths, an id.
    Id,
    /// Borrowed bytes: sent at once or copied. Of a tagged message that asks for nothing more; others as `Whole`.
    Now,
    /// Nobody waits for the end. Of what no peer refuses; others as `Whole`.
    Loose,
}

fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let piece = |len: &usize| {
        let (piece, behind) = rest.split_at(*len);
        rest = behind;
        piece.to_vec()
    };
    cuts.iter().map(piece).collect()
}

fn pieces(bufs: &[Vec<u8>]) -> Vec<Piece> {
    bufs.iter().map(|buf| Piece { addr: buf.as_ptr().cast_mut(), len: buf.len() }).collect()
}

/// The tag of a message that asks for nothing more.
fn plain_tag(params: &SendParams) -> Option<u64> {
    params.tag.filter(|_| params.sync == Sync::No && params.cq_data.is_none())
}

impl Form {
    /// Ended in the call, or nobody hears of it.
    const ENDED: Form = Form::Id { id: None, end: Some(Ok(())), _bytes: Vec::new() };

    /// Sends a message; `cuts` add up to its length.
    pub fn message(ep: &Ep, way: Way, bytes: Vec<u8>, cuts: &[usize], params: &SendParams) -> Form {
        match way {
            Way::Now if let Some(tag) = plain_tag(params) => match ep.tag_send_now(tag, &bytes) {
                Ok(()) => Form::ENDED,
                Err(request) => Form::Copy(request),
            },
            Way::Loose if params.sync == Sync::No => {
                ep.send(bytes, params).detach();
                Form::ENDED
            }
            Way::Whole | Way::Now | Way::Loose => Form::Whole(ep.send(bytes, params)),
            Way::Pieces => Form::Pieces(ep.send_iov(cut(&bytes, cuts), params)),
            Way::Told => Form::told(ep.send(bytes, params)),
            Way::Id => {
                let bufs = cut(&bytes, cuts);
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let begun = unsafe { ep.send_iov_raw(&pieces(&bufs), params) };
                Form::begun(begun, bufs)
            }
        }
    }

    /// Sends an active message.
    pub fn letter(
        ep: &Ep,
        (way, how): (Way, AmProto),
        id: u16,
        header: &[u8],
        bytes: Vec<u8>,
        cuts: &[usize],
    ) -> Form {
        match way {
            Way::Whole | Way::Told | Way::Now | Way::Loose => {
                Form::Letter(ep.am_send_by(how, id, header, bytes))
            }
            Way::Pieces => Form::LetterPieces(ep.am_send_iov(how, id, header, cut(&bytes, cuts))),
            Way::Id => {
                let bufs = cut(&bytes, cuts);
                let params = AmParams { how, done: None };
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let begun = unsafe { ep.am_send_iov_raw(id, header, &pieces(&bufs), &params) };
                Form::begun(begun, bufs)
            }
        }
    }

    /// Sends to a stream.
    pub fn stream(ep: &Ep, way: Way, bytes: Vec<u8>, cuts: &[usize]) -> Form {
        match way {
            Way::Whole | Way::Now | Way::Loose => Form::Whole(ep.stream_send(bytes)),
            Way::Told => Form::told(ep.stream_send(bytes)),
            Way::Pieces | Way::Id => {
                let bufs = cut(&bytes, cuts);
                // SAFETY: the bytes are kept with the id, unchanged, until the end.
                let begun = unsafe { ep.stream_send_iov_raw(&pieces(&bufs), None) };
                Form::begun(begun, bufs)
            }
        }
    }

    fn told(request: SendRequest<Vec<u8>>) -> Form {
        let end = Rc::new(Cell::new(None));
        let told = end.clone();
        request.then(move |end, _| told.set(Some(end)));
        Form::Told(end)
    }

    fn begun(begun: Result<Started<()>, Error>, _bytes: Vec<Vec<u8>>) -> Form {
        match begun {
            Ok(Started::Running(id)) => Form::Id { id: Some(id), end: None, _bytes },
            Ok(Started::Done(())) => Form::ENDED,
            Err(error) => Form::Id { id: None, end: Some(Err(error)), _bytes },
        }
    }

    /// Whether it has ended.
    pub fn is_done(&mut self, worker: &Worker) -> bool {
        match self {
            Form::Whole(request) => request.is_done(),
            Form::Pieces(request) => request.is_done(),
            Form::Copy(request) => request.is_done(),
            Form::Told(end) => end.get().is_some(),
            Form::Letter(send) => send.is_done(),
            Form::LetterPieces(send) => send.is_done(),
            Form::Id { id, end, .. } => {
                *end = end.or_else(|| worker.test((*id)?).map(|end| end.map(drop)));
                end.is_some()
            }
        }
    }

    /// The end of one that is done; none if it is not.
    pub fn end(self) -> Option<Result<(), Error>> {
        match self {
            Form::Whole(request) => request.test().ok().map(|(end, _)| end),
            Form::Pieces(request) => request.test().ok().map(|(end, _)| end),
            Form::Copy(request) => request.test().ok().map(|(end, _)| end),
            Form::Told(end) => end.get(),
            Form::Letter(send) => Some(send.wait().0),
            Form::LetterPieces(send) => Some(send.wait().0),
            Form::Id { end, .. } => end,
        }
    }

    /// Gives it up; true: it will end as cancelled. Not all forms can.
    pub fn cancel(&self, worker: &Worker) -> bool {
        match self {
            Form::Whole(request) => request.cancel(),
            Form::Pieces(request) => request.cancel(),
            Form::Copy(request) => request.cancel(),
            Form::Id { id: Some(id), end: None, .. } => worker.cancel(*id),
            Form::Told(_) | Form::Letter(_) | Form::LetterPieces(_) | Form::Id { .. } => false,
        }
    }
}

/// How a receive ended.
type Ended = Result<RecvStatus, Error>;

/// A receive under way.
pub enum Room {
    /// Into one piece.
    Whole(RecvRequest<Box<[u8]>>),
    /// Into several.
    Pieces(RecvRequest<Vec<Box<[u8]>>>),
}

/// Pieces of memory of these lengths.
fn blank(cuts: &[usize]) -> Vec<Box<[u8]>> {
    cuts.iter().map(|len| vec![0; *len].into_boxed_slice()).collect()
}

impl Room {
    /// Receives a message that matches, into one piece, or into several of these lengths.
    pub fn post(worker: &Worker, what: Match, cuts: &[usize]) -> Room {
        match cuts {
            [len] => Room::Whole(worker.recv(what, vec![0; *len].into_boxed_slice())),
            _ => Room::Pieces(worker.recv_iov(what, blank(cuts))),
        }
    }

    /// Receives one that a probe took.
    pub fn probed(message: Message, cuts: &[usize]) -> Room {
        match cuts {
            [len] => Room::Whole(message.recv(vec![0; *len].into_boxed_slice())),
            _ => Room::Pieces(message.recv_iov(blank(cuts))),
        }
    }

    /// Receives the body of an active message.
    pub fn body(message: AmMessage, cuts: &[usize]) -> Room {
        match cuts {
            [len] => Room::Whole(message.recv(vec![0; *len].into_boxed_slice())),
            _ => Room::Pieces(message.recv_iov(blank(cuts))),
        }
    }

    /// Receives from a stream.
    pub fn stream(ep: &Ep, until: Until, cuts: &[usize]) -> Room {
        match (cuts, until) {
            ([len], Until::Some) => Room::Whole(ep.stream_recv(vec![0; *len].into_boxed_slice())),
            ([len], Until::Full) => Room::Whole(ep.stream_recv_full(vec![0; *len].into_boxed_slice())),
            _ => Room::Pieces(ep.stream_recv_iov(blank(cuts), until)),
        }
    }

    /// Whether it has ended.
    pub fn is_done(&mut self) -> bool {
        match self {
            Room::Whole(request) => request.is_done(),
            Room::Pieces(request) => request.is_done(),
        }
    }

    /// Gives it up; true: it will end as cancelled.
    pub fn cancel(&self) -> bool {
        match self {
            Room::Whole(request) => request.cancel(),
            Room::Pieces(request) => request.cancel(),
        }
    }

    /// The end and all bytes of one that is done; none if it is not.
    pub fn end(self) -> Option<(Ended, Box<[u8]>)> {
        match self {
            Room::Whole(request) => request.test().ok(),
            Room::Pieces(request) => request.test().ok().map(|(end, bufs)| (end, bufs.concat().into())),
        }
    }
}
