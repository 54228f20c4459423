//! Compact forms of the addresses of known transports: which of their bytes are constant, equal to others of
//! the worker's address, or to be packed. An address that is not of its transport's form is packed in full.

use arrayvec::ArrayVec;

use super::{Entry, LINK_LOCAL, MAX_PART, Part, Reader};

/// Forms by number, from 1. Numbers keep their meaning: a form is only ever added, at the end.
pub(super) const FORMS: &[Form] = &[
    // An id, which becomes the worker's uid.
    Form { tl: "self", device_len: 0, fields: &[Field::Uid] },
    // Device: socket namespace, host. Interface: number of the export, key of the process, which once had 40
    // bits.
    Form {
        tl: "posix",
        device_len: 8,
        fields: &[Field::Bytes(4), Field::Shared(HOST), Field::Bytes(3), Field::Shared(PROCESS_KEY)],
    },
    // Device: pid namespace, host. Interface: pid, key of the process (40 bits), address of the key.
    Form {
        tl: "cma",
        device_len: 8,
        fields: &[
            Field::Bytes(4),
            Field::Shared(HOST),
            Field::Bytes(3),
            Field::Zeros(5),
            Field::Shared(PROCESS_KEY),
            Field::Zeros(3),
            Field::Bytes(6),
            Field::Zeros(2),
        ],
    },
    // Device: GID. Interface: GID, queue pair number, connection id.
    Form {
        tl: "efa",
        device_len: 16,
        fields: &[
            Field::LinkLocal,
            Field::Bytes(8),
            Field::Repeat { at: 0, len: 16 },
            Field::Bytes(2),
            Field::Zeros(2),
            Field::Connid,
            Field::Zeros(8),
        ],
    },
    // As the second form and the third, with keys of 32 bits.
    Form {
        tl: "posix",
        device_len: 8,
        fields: &[Field::Bytes(4), Field::Shared(HOST), Field::Bytes(4), Field::Shared(SHORT_PROCESS_KEY)],
    },
    Form {
        tl: "cma",
        device_len: 8,
        fields: &[
            Field::Bytes(4),
            Field::Shared(HOST),
            Field::Bytes(3),
            Field::Zeros(5),
            Field::Shared(SHORT_PROCESS_KEY),
            Field::Zeros(4),
            Field::Bytes(6),
            Field::Zeros(2),
        ],
    },
];

/// Number of the boot of the host.
const HOST: Shared = Shared { slot: 0, len: 4 };
/// Key of the process at its fd server, of 40 bits.
const PROCESS_KEY: Shared = Shared { slot: 1, len: 5 };
/// Key of the process at its fd server, of 32 bits.
const SHORT_PROCESS_KEY: Shared = Shared { slot: 2, len: 4 };

/// A piece of an entry's device and interface address, which are one run of bytes here.
#[derive(Clone, Copy)]
enum Field {
    /// Bytes that are packed.
    Bytes(usize),
    Zeros(usize),
    LinkLocal,
    /// The bytes from `at` on of the same entry.
    Repeat {
        at: usize,
        len: usize,
    },
    /// The worker's uid, little endian.
    Uid,
    /// The connection id of the entry, little endian.
    Connid,
    Shared(Shared),
}

/// Bytes that several entries have in common: packed in the first of them.
#[derive(Clone, Copy)]
struct Shared {
    slot: usize,
    len: usize,
}

/// The common bytes that have been packed or read so far.
#[derive(Clone, Default)]
pub(super) struct SharedBytes([Option<ArrayVec<u8, 8>>; 3]);

/// The form of a transport's addresses.
pub(super) struct Form {
    tl: &'static str,
    device_len: usize,
    fields: &'static [Field],
}

type Run = ArrayVec<u8, { 2 * MAX_PART }>;

impl Field {
    fn len(self) -> usize {
        match self {
            Field::Bytes(len) | Field::Zeros(len) | Field::Repeat { len, .. } => len,
            Field::LinkLocal | Field::Uid => 8,
            Field::Connid => 4,
            Field::Shared(Shared { len, .. }) => len,
        }
    }
}

impl Form {
    /// Whether the form contains the connection id.
    pub(super) fn has_connid(&self) -> bool {
        self.fields.iter().any(|field| matches!(field, Field::Connid))
    }

    fn len(&self) -> usize {
        self.fields.iter().map(|field| field.len()).sum()
    }

    /// Packs the addresses of an entry of this form. Returns false, with an unfinished entry at the end of
    /// `out`, if the entry is not of the form.
    pub(super) fn pack(&self, entry: &Entry, uid: u64, shared: &mut SharedBytes, out: &mut Vec<u8>) -> bool {
        let run: Run = entry.device.iter().chain(&entry.iface).copied().collect();
        if entry.tl() != self.tl || entry.device.len() != self.device_len || run.len() != self.len() {
            return false;
        }
        let mut after = shared.clone();
        let mut at = 0;
        for field in self.fields {
            let bytes = &run[at..at + field.len()];
            at += field.len();
            let is_implied = match *field {
                Field::Bytes(_) => {
                    out.extend_from_slice(bytes);
                    true
                }
                Field::Zeros(_) => bytes.iter().all(|byte| *byte == 0),
                Field::LinkLocal => bytes == LINK_LOCAL,
                Field::Repeat { at, len } => bytes == &run[at..at + len],
                Field::Uid => bytes == uid.to_le_bytes(),
                Field::Connid => {
                    out.extend_from_slice(bytes);
                    bytes == entry.connid.to_le_bytes()
                }
                Field::Shared(Shared { slot, .. }) => match &after.0[slot] {
                    Some(known) => bytes == known.as_slice(),
                    None => {
                        out.extend_from_slice(bytes);
                        after.0[slot] = Some(bytes.iter().copied().collect());
                        true
                    }
                },
            };
            if !is_implied {
                return false;
            }
        }
        *shared = after;
        true
    }

    /// Reads the addresses of an entry; `connid` is its connection id if the form contains none.
    pub(super) fn read(
        &self,
        reader: &mut Reader<'_>,
        (uid, mut connid): (u64, u32),
        shared: &mut SharedBytes,
    ) -> Option<Entry> {
        let mut run = Run::new();
        for field in self.fields {
            match *field {
                Field::Bytes(len) => run.extend(reader.take(len)?.iter().copied()),
                Field::Zeros(len) => run.extend(std::iter::repeat_n(0, len)),
                Field::LinkLocal => run.extend(LINK_LOCAL),
                Field::Repeat { at, len } => {
                    let bytes: Run = run[at..at + len].iter().copied().collect();
                    run.extend(bytes);
                }
                Field::Uid => run.extend(uid.to_le_bytes()),
                Field::Connid => {
                    let bytes = reader.array()?;
                    connid = u32::from_le_bytes(bytes);
                    run.extend(bytes);
                }
                Field::Shared(Shared { slot, len }) => {
                    let bytes = match &shared.0[slot] {
                        Some(known) => known.clone(),
                        None => reader.take(len)?.iter().copied().collect(),
                    };
                    run.extend(bytes.iter().copied());
                    shared.0[slot] = Some(bytes);
                }
            }
        }
        let (device, iface) = run.split_at(self.device_len);
        Some(Entry {
            tl: ArrayVec::try_from(self.tl.as_bytes()).ok()?,
            connid,
            device: Part::try_from(device).ok()?,
            iface: Part::try_from(iface).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_fit_their_types() {
        for form in FORMS {
            assert!(form.device_len <= MAX_PART && form.len() - form.device_len <= MAX_PART, "{}", form.tl);
            let mut at = 0;
            for field in form.fields {
                if let Field::Repeat { at: from, len } = *field {
                    assert!(from + len <= at, "{}: repeats bytes before it", form.tl);
                }
                if let Field::Shared(Shared { slot, len }) = *field {
                    assert!(slot < 3 && len <= 8, "{}", form.tl);
                }
                at += field.len();
            }
        }
    }
}
