//! Starting under a launcher: rank, size, and a string of one process for all others, by PMIx (`mpirun`, `srun
//! --mpi=pmix`, `prun`). libpmix is looked for when the program runs: a build needs nothing of it, and a run without a
//! launcher does not load it. Used once, before anything is measured.
//!
//! Only what eight functions need is declared here. The layout has been the same since PMIx 2 (`pmix_common.h`).

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use libloading::{Library, Symbol};

/// Names under which the library is looked for; its number has been 2 since PMIx 2.
const NAMES: [&str; 3] = ["libpmix.so.2", "libpmix.so.5", "libpmix.so"];
/// Any rank of the job (`PMIX_RANK_WILDCARD`).
const WILDCARD: u32 = u32::MAX - 1;
const TYPE_STRING: u16 = 3;
const TYPE_UINT32: u16 = 14;
/// For processes of this host and of others (`PMIX_GLOBAL`).
const SCOPE_GLOBAL: u8 = 3;
const NAMESPACE: usize = 256;
const KEY: usize = 512;
/// Longest string that is believed.
const MAX_TEXT: usize = 4096;

/// Why a launcher could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmixError {
    /// The library is not there.
    #[error(
        "this program was started by a launcher (PMIX_RANK is set), but libpmix cannot be loaded: {why}; install \
             it (Debian: libpmix2), or use -P 0"
    )]
    NoLibrary {
        /// What the loader said.
        why: String,
    },
    /// A function of the library is missing: not a PMIx that we know.
    #[error("libpmix has no {name}: it is of an unknown version")]
    NoFunction {
        /// Its name.
        name: &'static str,
    },
    /// A call failed.
    #[error("{call}: {why} (PMIx status {status}); -P 0 starts without the launcher")]
    Call {
        /// The function.
        call: &'static str,
        /// Its answer.
        status: i32,
        /// What the library calls it.
        why: String,
    },
    /// The launcher answered something of another kind than was asked for.
    #[error("the launcher's answer to '{key}' makes no sense")]
    Answer {
        /// What was asked for.
        key: String,
    },
}

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    namespace: [c_char; NAMESPACE],
    rank: u32,
}

/// `pmix_value_t`: the union's largest members are three words long.
#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32);

type Init = unsafe extern "C" fn(*mut Proc, *const u8, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const u8, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const u8, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const u8, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// This process as its launcher knows it. Dropping it tells the launcher that it ends well.
pub struct Pmix {
    lib: Library,
    me: Proc,
}

impl Pmix {
    /// Whether a launcher that speaks PMIx has started this process.
    pub fn is_there() -> bool {
        ["PMIX_RANK", "PMIX_NAMESPACE"].iter().all(|name| std::env::var_os(name).is_some())
    }

    /// Speaks to the launcher.
    pub fn init() -> Result<Pmix, PmixError> {
        let mut why = String::new();
        let open = |name: &&str| {
            // SAFETY: libpmix's initialisers have no requirements; any other library of that name is the system's
            // choice, as it is for every program linked against it.
            let lib = unsafe { Library::new(*name) };
            lib.map_err(|e| why = e.to_string()).ok()
        };
        let Some(lib) = NAMES.iter().find_map(open) else { return Err(PmixError::NoLibrary { why }) };
        let mut pmix = Pmix { lib, me: Proc { namespace: [0; NAMESPACE], rank: 0 } };
        let mut me = Proc { namespace: [0; NAMESPACE], rank: 0 };
        let status = {
            let init = pmix.function::<Init>("PMIx_Init")?;
            // SAFETY: `me` is a process name to be filled; no options are given.
            unsafe { init(&raw mut me, ptr::null(), 0) }
        };
        if let Err(e) = pmix.check("PMIx_Init", status) {
            // There is nothing to finalize.
            std::mem::forget(pmix);
            return Err(e);
        }
        pmix.me = me;
        Ok(pmix)
    }

    /// This process's number in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Processes of the job.
    pub fn size(&self) -> Result<u32, PmixError> {
        self.number("pmix.job.size")
    }

    /// Processes of the job on this host.
    pub fn local_size(&self) -> Result<u32, PmixError> {
        self.number("pmix.local.size")
    }

    /// Makes a string known to all processes that call [`get`](Self::get) after a [`fence`](Self::fence).
    pub fn put(&self, key: &str, text: &str) -> Result<(), PmixError> {
        let (key, text) = (padded(key), CString::new(text).unwrap_or_default());
        let mut value = Value { kind: TYPE_STRING, data: [text.as_ptr() as u64, 0, 0] };
        let put = self.function::<Put>("PMIx_Put")?;
        // SAFETY: key and value are whole and live over the call, which copies them.
        let status = unsafe { put(SCOPE_GLOBAL, key.as_ptr(), &raw mut value) };
        self.check("PMIx_Put", status)?;
        let commit = self.function::<Commit>("PMIx_Commit")?;
        // SAFETY: no arguments; the library has been initialised.
        let status = unsafe { commit() };
        self.check("PMIx_Commit", status)
    }

    /// Waits until all processes of the job are here.
    pub fn fence(&self) -> Result<(), PmixError> {
        let fence = self.function::<Fence>("PMIx_Fence")?;
        // SAFETY: no list means all processes of the job; no options are given.
        let status = unsafe { fence(ptr::null(), 0, ptr::null(), 0) };
        self.check("PMIx_Fence", status)
    }

    /// The string that process `rank` has put.
    pub fn get(&self, rank: u32, key: &str) -> Result<String, PmixError> {
        let value = self.value(rank, key)?;
        let at = value.data[0] as *const c_char;
        if value.kind != TYPE_STRING || at.is_null() {
            return Err(PmixError::Answer { key: key.into() });
        }
        // SAFETY: a string value holds a pointer to a string that ends with a zero and belongs to the value, which is
        // never freed.
        let text = unsafe { CStr::from_ptr(at) };
        match text.to_str() {
            Ok(text) if text.len() <= MAX_TEXT => Ok(text.to_owned()),
            _ => Err(PmixError::Answer { key: key.into() }),
        }
    }

    fn number(&self, key: &str) -> Result<u32, PmixError> {
        let value = self.value(WILDCARD, key)?;
        match value.kind {
            // The union's first bytes, on little-endian machines.
            TYPE_UINT32 => {
                Ok(value.data[0].to_ne_bytes().first_chunk().map_or(0, |b| u32::from_ne_bytes(*b)))
            }
            _ => Err(PmixError::Answer { key: key.into() }),
        }
    }

    /// A value, copied. What it points at is not freed: some bytes, once a run.
    fn value(&self, rank: u32, key: &str) -> Result<Value, PmixError> {
        let (from, name) = (Proc { namespace: self.me.namespace, rank }, padded(key));
        let mut at: *mut Value = ptr::null_mut();
        let get = self.function::<Get>("PMIx_Get")?;
        // SAFETY: name and key are whole and live over the call; `at` is a pointer to be set; no options are given.
        let status = unsafe { get(&raw const from, name.as_ptr(), ptr::null(), 0, &raw mut at) };
        self.check("PMIx_Get", status)?;
        if at.is_null() {
            return Err(PmixError::Answer { key: key.into() });
        }
        // SAFETY: after success it points at a value that is the caller's.
        Ok(unsafe { at.read() })
    }

    fn function<F>(&self, name: &'static str) -> Result<Symbol<'_, F>, PmixError> {
        // SAFETY: each caller names a function together with its type in `pmix.h`; it is used while `self` lives.
        unsafe { self.lib.get(name) }.map_err(|_| PmixError::NoFunction { name })
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), PmixError> {
        if status == 0 {
            return Ok(());
        }
        let mut why = String::from("failed");
        if let Ok(describe) = self.function::<ErrorString>("PMIx_Error_string") {
            // SAFETY: takes any number.
            let text = unsafe { describe(status) };
            if !text.is_null() {
                // SAFETY: a constant string of the library.
                why = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            }
        }
        Err(PmixError::Call { call, status, why })
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        if let Ok(finalize) = self.function::<Finalize>("PMIx_Finalize") {
            // SAFETY: it was initialised, and this is the last use; no options are given.
            unsafe { finalize(ptr::null(), 0) };
        }
    }
}

/// A key as an array of its full length: the library may copy all of it.
fn padded(key: &str) -> [c_char; KEY] {
    let mut array = [0; KEY];
    // The last place stays zero.
    for (to, from) in array.iter_mut().take(KEY - 1).zip(key.bytes()) {
        *to = from as c_char;
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_with_a_zero() {
        let key = padded(&"k".repeat(1000));
        assert_eq!((key[0], key[KEY - 2], key[KEY - 1]), (b'k' as c_char, b'k' as c_char, 0));
        assert_eq!(padded("ab")[..3], [b'a' as c_char, b'b' as c_char, 0]);
    }
}
