//! Notes to peers, which nobody waits for: they have no requests.

use crate::api::core::worker_core::WorkerCore;
use crate::rdm::io::PeerId;
use crate::rdm::{self, Note, OpError, Started};
use crate::token::UserToken;

/// Sends a note, now or once there is room. A peer that has failed, or does not know notes, gets none.
#[cold]
pub(crate) fn send_note(core: &mut WorkerCore, to: PeerId, note: Note) {
    let (engine, mut wire, _) = core.split();
    let started = rdm::send_note(engine, &mut wire, to, note, UserToken::Note.pack());
    if started == Started::Failed(OpError::NoResource) {
        core.unsent_notes.push((to, note));
    }
}

/// Sends the notes for which there was no room.
#[cold]
pub(crate) fn send_unsent_notes(core: &mut WorkerCore) {
    for (to, note) in std::mem::take(&mut core.unsent_notes) {
        send_note(core, to, note);
    }
}
