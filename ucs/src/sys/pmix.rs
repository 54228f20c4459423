//! Start by a launcher that speaks PMIx (`mpirun`, `srun --mpi=pmix`, `prun`): rank, size, and a key-value
//! store. libpmix is loaded at run time, when somebody asks, and stays loaded. Declares the functions that it
//! needs; their layout is that of PMIx 2 and later (`pmix_common.h`). The library counts its users: a program
//! that speaks PMIx itself is not affected.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

const NAMES: [&CStr; 3] = [c"libpmix.so.2", c"libpmix.so.5", c"libpmix.so"];
/// `PMIX_RANK_WILDCARD`: any rank of the job.
const WILDCARD: u32 = u32::MAX - 1;
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;
const TYPE_INT: u16 = 6;
const TYPE_UINT32: u16 = 14;
/// `PMIX_GLOBAL`: for processes of all hosts.
const SCOPE_GLOBAL: u8 = 3;
const NAMESPACE: usize = 256;
const KEY: usize = 512;
/// Longest string taken from the launcher.
const MAX_TEXT: usize = 4096;

/// Why a launcher could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PmixError {
    /// The library cannot be loaded.
    #[error(
        "this program was started by a launcher (PMIX_RANK is set), but libpmix cannot be loaded: {0}; install \
             it (Debian: libpmix2)"
    )]
    NoLibrary(String),
    /// The library lacks a function.
    #[error("libpmix has no {0}: it is of an unknown version")]
    NoFunction(&'static str),
    /// A call failed.
    #[error("{call}: {why} (PMIx status {status})")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// PMIx status.
        status: i32,
        /// Text of the library.
        why: String,
    },
    /// The launcher returned a value of another type than asked for.
    #[error("the launcher's answer to '{0}' makes no sense")]
    Answer(String),
}

impl PmixError {
    /// Whether a process has not given what was asked for: it may do so later.
    pub fn is_not_found(&self) -> bool {
        /// PMIX_ERR_NOT_FOUND.
        const NOT_FOUND: i32 = -46;
        matches!(self, PmixError::Call { status: NOT_FOUND, .. })
    }
}

#[repr(C)]
struct Proc {
    namespace: [c_char; NAMESPACE],
    rank: u32,
}

#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

/// An option of a call.
#[repr(C)]
struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);

type Init = unsafe extern "C" fn(*mut Proc, *const u8, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const u8, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The connection to the launcher. Dropping it reports an orderly end.
pub struct Pmix {
    lib: Library,
    me: Proc,
}

/// The loaded library. It is never unloaded: it may have threads.
struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: initialisers of libpmix have no requirements; the system decides what has its name.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        // SAFETY: no arguments.
        let why = unsafe { libc::dlerror() };
        if why.is_null() {
            return Err("unknown error".into());
        }
        // SAFETY: a string that stays until this thread's next call of the loader.
        Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of a library that is never unloaded; the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }
}

impl Pmix {
    /// Whether a launcher that speaks PMIx started this process.
    pub fn is_there() -> bool {
        ["PMIX_RANK", "PMIX_NAMESPACE"].iter().all(|name| std::env::var_os(name).is_some())
    }

    /// Loads the library and connects to the launcher.
    pub fn init() -> Result<Pmix, PmixError> {
        let mut why = String::new();
        let open = |name: &&CStr| Library::open(name).map_err(|e| why = e).ok();
        let Some(lib) = NAMES.iter().find_map(open) else { return Err(PmixError::NoLibrary(why)) };
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

    /// Number of this process in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// Number of processes in the job.
    pub fn size(&self) -> Result<u32, PmixError> {
        self.number("pmix.job.size")
    }

    /// Number of processes of the job on this host.
    pub fn local_size(&self) -> Result<u32, PmixError> {
        self.number("pmix.local.size")
    }

    /// Publishes a string; others read it by [`get`](Self::get) after a [`fence`](Self::fence).
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

    /// Publishes bytes, at most 2048; others read them by [`get_bytes`](Self::get_bytes). They travel as
    /// hexadecimal digits, as a store need not keep other bytes.
    pub fn put_bytes(&self, key: &str, bytes: &[u8]) -> Result<(), PmixError> {
        self.put(key, &to_hex(bytes))
    }

    /// Returns the bytes that process `rank` published.
    pub fn get_bytes(&self, rank: u32, key: &str) -> Result<Vec<u8>, PmixError> {
        from_hex(&self.get(rank, key)?).ok_or_else(|| PmixError::Answer(key.into()))
    }

    fn is_of_slurm(&self) -> bool {
        let prefix = b"slurm.pmix.";
        self.me.namespace.iter().zip(prefix).all(|(is, want)| *is == *want as c_char)
    }

    /// Waits until all processes of the job have called this.
    pub fn fence(&self) -> Result<(), PmixError> {
        let fence = self.function::<Fence>("PMIx_Fence")?;
        let value = Value { kind: TYPE_BOOL, data: [1, 0, 0] };
        let collect = Info { key: padded("pmix.collect"), flags: 0, value };
        // Slurm does not wait for other nodes in a fence without data. Others do, without the exchange.
        let options = usize::from(self.is_of_slurm());
        // SAFETY: no list means all processes of the job; the option is whole and lives over the call.
        let status = unsafe { fence(ptr::null(), 0, &raw const collect, options) };
        self.check("PMIx_Fence", status)
    }

    /// Returns the string that process `rank` published.
    pub fn get(&self, rank: u32, key: &str) -> Result<String, PmixError> {
        self.text(self.value(rank, key, &[])?, key)
    }

    /// Returns the string that process `rank` publishes, waiting for it at most for `seconds` where the
    /// launcher takes a limit.
    pub fn get_within(&self, rank: u32, key: &str, seconds: u32) -> Result<String, PmixError> {
        let value = Value { kind: TYPE_INT, data: [seconds.into(), 0, 0] };
        self.text(self.value(rank, key, &[Info { key: padded("pmix.timeout"), flags: 0, value }])?, key)
    }

    fn text(&self, value: Value, key: &str) -> Result<String, PmixError> {
        let at = value.data[0] as *const c_char;
        if value.kind != TYPE_STRING || at.is_null() {
            return Err(PmixError::Answer(key.into()));
        }
        // SAFETY: a value of this type points to a string that ends with a zero. The value is never freed.
        let text = unsafe { CStr::from_ptr(at) };
        match text.to_str() {
            Ok(text) if text.len() <= MAX_TEXT => Ok(text.to_owned()),
            _ => Err(PmixError::Answer(key.into())),
        }
    }

    fn number(&self, key: &str) -> Result<u32, PmixError> {
        let value = self.value(WILDCARD, key, &[])?;
        match value.kind {
            // The first bytes of the union, on little-endian machines.
            TYPE_UINT32 => {
                Ok(value.data[0].to_ne_bytes().first_chunk().map_or(0, |b| u32::from_ne_bytes(*b)))
            }
            _ => Err(PmixError::Answer(key.into())),
        }
    }

    /// Copies a value. What it points to is not freed: a few bytes per run.
    fn value(&self, rank: u32, key: &str, options: &[Info]) -> Result<Value, PmixError> {
        let (from, name) = (Proc { namespace: self.me.namespace, rank }, padded(key));
        let mut at: *mut Value = ptr::null_mut();
        let get = self.function::<Get>("PMIx_Get")?;
        let (options, len) = (options.as_ptr(), options.len());
        // SAFETY: name, key and options are whole and live over the call, which sets `at`.
        let status = unsafe { get(&raw const from, name.as_ptr(), options, len, &raw mut at) };
        self.check("PMIx_Get", status)?;
        if at.is_null() {
            return Err(PmixError::Answer(key.into()));
        }
        // SAFETY: after success it points at a value that is the caller's.
        Ok(unsafe { at.read() })
    }

    fn function<F: Copy>(&self, name: &'static str) -> Result<F, PmixError> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
        let symbol = CString::new(name).ok().and_then(|name| self.lib.symbol(&name));
        let symbol = symbol.ok_or(PmixError::NoFunction(name))?;
        // SAFETY: each caller names a function with its type in `pmix.h`, which is a pointer (asserted).
        Ok(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&symbol) })
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

/// A key as an array of full length: the library may copy all of it.
fn padded(key: &str) -> [c_char; KEY] {
    let mut array = [0; KEY];
    for (to, from) in array.iter_mut().take(KEY - 1).zip(key.bytes()) {
        *to = from as c_char;
    }
    array
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_nul_terminated() {
        let key = padded(&"k".repeat(1000));
        assert_eq!((key[0], key[KEY - 2], key[KEY - 1]), (b'k' as c_char, b'k' as c_char, 0));
        assert_eq!(padded("ab")[..3], [b'a' as c_char, b'b' as c_char, 0]);
    }

    #[test]
    fn bytes_travel_as_digits() {
        let bytes = [0, 9, 0xa0, 0xff];
        assert_eq!(to_hex(&bytes), "0009a0ff");
        assert_eq!(from_hex("0009a0FF").as_deref(), Some(&bytes[..]));
        assert_eq!(
            (from_hex(""), from_hex("0"), from_hex("0x"), from_hex("é1")),
            (Some(Vec::new()), None, None, None)
        );
    }
}
