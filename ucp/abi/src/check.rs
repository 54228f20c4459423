//! Checks of `UCX_CHECK=y`: every handle and request that a program passes is one that this library has
//! made and the program has not freed. The first that is not ends the process, with one line on standard
//! error.
//!
//! Handles are remembered by their addresses. No new handle gets the address of one that has been freed, so
//! that a freed one is always found. Freed requests are held back from later operations
//! ([`HELD_REQUESTS`]): until then a freed one is found.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::handle::Named;
use crate::mem::Mem;
use crate::op::Call;
use crate::types::RequestParam;
use crate::uct;
use crate::worker::Worker;

const OFF: u8 = 0;
/// The first function that is called reads the environment.
const UNDECIDED: u8 = 1;
const ON: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(UNDECIDED);

/// Whether there may be something to check.
// HOT
#[inline(always)]
pub(crate) fn is_on() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// Freed requests of a worker that serve no other operation. The oldest is given back for each one more.
pub(crate) const HELD_REQUESTS: usize = 1 << 16;

/// Whether handles are checked.
pub(crate) fn checks() -> bool {
    if MODE.load(Ordering::Relaxed) == UNDECIDED {
        let given = std::env::var("UCX_CHECK").ok();
        let is_wanted = given.and_then(|value| <bool as ::ucs::config::ConfigValue>::parse(&value));
        MODE.store(if is_wanted == Some(true) { ON } else { OFF }, Ordering::Relaxed);
    }
    MODE.load(Ordering::Relaxed) == ON
}

/// Name of requests in messages.
const REQUEST: &str = "request";

/// Owner of the memory of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// This library.
    Library,
    /// This library, for the program's operations: a request of `ucp_request_alloc`.
    Allocated,
    /// The program, for a request.
    Program,
}

/// Object that has been handed out at an address.
struct Object {
    name: &'static str,
    memory: Memory,
    /// Worker of a request.
    worker: usize,
    /// Function that has freed it.
    freed_by: Option<&'static str>,
}

static OBJECTS: Mutex<Option<HashMap<usize, Object>>> = Mutex::new(None);

thread_local! {
    /// Function of the interface that runs.
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
    /// Request in memory of the program that its operation uses.
    static CALLERS_REQUEST: Cell<usize> = const { Cell::new(0) };
}

/// Runs `f` on the objects that are known.
fn with_objects<R>(f: impl FnOnce(&mut HashMap<usize, Object>) -> R) -> R {
    let mut objects: MutexGuard<'_, _> = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    f(objects.get_or_insert_default())
}

/// Prints the violated rule and aborts the process.
fn abort_check(rule: std::fmt::Arguments<'_>) -> ! {
    ::ucs::stderr_line!("ucp: UCX_CHECK: {}: {rule}", FUNCTION.get());
    std::process::abort()
}

/// A kind with its article.
fn one(name: &str) -> String {
    let article = if name.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// Ends the process unless a live object of that kind is at an address. Null is left to the function.
fn require(at: usize, name: &'static str) {
    if at == 0 {
        return;
    }
    // What is wrong is told without the lock.
    let rule = with_objects(|objects| match objects.get(&at) {
        None => Some(format!("{at:#x} is not {} of this library", one(name))),
        Some(found) if found.name != name => {
            Some(format!("{at:#x} is {}, not {}", one(found.name), one(name)))
        }
        Some(Object { freed_by: Some(freed_by), .. }) => {
            Some(format!("{at:#x} is {} that {freed_by} has freed", one(name)))
        }
        Some(_) => None,
    });
    if let Some(rule) = rule {
        abort_check(format_args!("{rule}"));
    }
}

/// Checks a rule that is not about handles: the data that a program gives back is what it has kept.
pub(crate) fn kept(data: *const c_void, is_kept: bool) {
    if !is_kept && !data.is_null() && checks() {
        abort_check(format_args!("{data:p} is no data that the program has kept, or it has been released"));
    }
}

/// Checks a rule that is not about handles: the packed bytes that a program gives back are of this library.
pub(crate) fn not_packed(at: *const c_void, name: &str) {
    if checks() {
        abort_check(format_args!("{at:p} is no {name} of this library, or it has been released"));
    }
}

/// Ends the process: a program has called an inline function of a freed object, whose memory is kept.
pub(crate) fn use_after_free(function: &'static str, at: usize) -> ! {
    FUNCTION.set(function);
    let what = with_objects(|objects| {
        let found = objects.get(&at);
        found.and_then(|found| found.freed_by.map(|by| format!("{} that {by} has freed", one(found.name))))
    });
    abort_check(format_args!("{at:#x} is {}", what.as_deref().unwrap_or("not an object of this library")))
}

/// An argument of a function.
#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Handle {
        at: usize,
        name: &'static str,
    },
    /// Request in memory of the program and memory handle that the parameters of an operation name; 0: none.
    Param {
        request: usize,
        memh: usize,
    },
    /// List of local memory of the lower interface.
    Pieces(*const uct::Iov),
    /// Number of elements of a list.
    Count(usize),
    /// Request of a function that has it as an argument.
    Request(usize),
    Other,
}

/// An argument, to be looked at by its type.
#[derive(Clone, Copy)]
pub(crate) struct Probe<T>(pub T);

/// Types of arguments that are checked: handles, parameters, requests.
pub(crate) trait Inspect {
    /// # Safety
    /// The argument is one of a function of the interface, by its contract.
    unsafe fn inspect(&self, name: &str) -> Argument;
}

/// Every other type. Method resolution prefers [`Inspect`]: this one needs one more reference (autoref
/// specialization).
pub(crate) trait InspectOther {
    /// # Safety
    /// None: the argument is not looked at.
    unsafe fn inspect(&self, _name: &str) -> Argument {
        Argument::Other
    }
}

impl<T> InspectOther for &Probe<T> {}

impl<T: Named> Inspect for Probe<*mut T> {
    unsafe fn inspect(&self, name: &str) -> Argument {
        // SAFETY: this function's contract.
        unsafe { Probe(self.0.cast_const()).inspect(name) }
    }
}

impl<T: Named> Inspect for Probe<*const T> {
    unsafe fn inspect(&self, _: &str) -> Argument {
        if T::IS_STATIC { Argument::Other } else { Argument::Handle { at: self.0.addr(), name: T::NAME } }
    }
}

impl Inspect for Probe<*const RequestParam> {
    unsafe fn inspect(&self, _: &str) -> Argument {
        // SAFETY: this function's contract.
        let Some(call) = (unsafe { Call::fast(self.0) }) else { return Argument::Other };
        Argument::Param { request: call.request().addr(), memh: call.memh().addr() }
    }
}

impl Inspect for Probe<*const uct::Iov> {
    unsafe fn inspect(&self, _: &str) -> Argument {
        Argument::Pieces(self.0)
    }
}

/// Keys of the lower interface are numbers.
impl Inspect for Probe<usize> {
    unsafe fn inspect(&self, name: &str) -> Argument {
        match name {
            "rkey" if self.0 != uct::INVALID_RKEY => Argument::Handle { at: self.0, name: uct::Rkey::NAME },
            "count" => Argument::Count(self.0),
            _ => Argument::Other,
        }
    }
}

impl Inspect for Probe<*mut c_void> {
    unsafe fn inspect(&self, name: &str) -> Argument {
        if name == REQUEST { Argument::Request(self.0.addr()) } else { Argument::Other }
    }
}

/// Looks at an argument of a function: unsafe, as [`Inspect::inspect`] is.
macro_rules! argument {
    ($arg:ident) => {{
        #[allow(unused_imports)]
        use crate::check::{Inspect as _, InspectOther as _};
        #[allow(clippy::needless_borrow)]
        (&crate::check::Probe($arg)).inspect(stringify!($arg))
    }};
}
pub(crate) use argument;

/// Checks the arguments of a function that begins.
/// # Safety
/// They are those of its caller, who keeps the contract of the interface.
#[cold]
#[inline(never)]
pub(crate) unsafe fn enter(function: &'static str, arguments: &[Argument]) {
    if !checks() {
        return;
    }
    FUNCTION.set(function);
    CALLERS_REQUEST.set(0);
    for argument in arguments {
        match *argument {
            Argument::Handle { at, name } => require(at, name),
            Argument::Param { request, memh } => {
                require(memh, Mem::NAME);
                note_callers_request(request);
            }
            // SAFETY: this function's contract.
            Argument::Pieces(list) => unsafe { require_memory(list, arguments) },
            Argument::Request(at) if function.ends_with("_nbr") => note_callers_request(at),
            Argument::Request(at) if function.starts_with("ucp_request_free") => free_request(at),
            Argument::Request(at) if function == "ucp_request_release" => free_request(at),
            Argument::Request(at) => require(at, REQUEST),
            Argument::Count(_) | Argument::Other => {}
        }
    }
}

/// Checks the memory handles of a list, whose length is an argument as well.
/// # Safety
/// `list` is null or has this many pieces.
unsafe fn require_memory(list: *const uct::Iov, arguments: &[Argument]) {
    let count = arguments
        .iter()
        .find_map(|found| if let Argument::Count(count) = found { Some(*count) } else { None });
    // A longer list is refused.
    let count = count.filter(|count| !list.is_null() && *count <= uct::MAX_IOV).unwrap_or(0);
    for at in 0..count {
        // SAFETY: this function's contract.
        let memh = unsafe { (&raw const (*list.add(at)).memh).read_unaligned() };
        require(memh.addr(), uct::MemHandle::NAME);
    }
}

/// A request in memory of the program: not one of `ucp_request_alloc` that has been freed.
fn note_callers_request(at: usize) {
    let is_allocated =
        with_objects(|objects| objects.get(&at).is_some_and(|found| found.memory == Memory::Allocated));
    if is_allocated {
        require(at, REQUEST);
    }
    CALLERS_REQUEST.set(at);
}

fn free_request(at: usize) {
    require(at, REQUEST);
    let is_programs = with_objects(|objects| match objects.get_mut(&at) {
        Some(found) if found.memory != Memory::Program => {
            found.freed_by = Some(FUNCTION.get());
            false
        }
        found => found.is_some(),
    });
    if is_programs {
        abort_check(format_args!(
            "{at:#x} is a request in memory of the program, which the library does not free"
        ));
    }
}

/// Remembers a request that an operation uses from now on.
#[cold]
#[inline(never)]
pub(crate) fn add_request(request: *mut c_void, worker: &Worker) {
    if !checks() {
        return;
    }
    let at = request.addr();
    let is_callers = CALLERS_REQUEST.get() == at;
    with_objects(|objects| {
        let memory = match objects.get(&at) {
            Some(known) if known.memory == Memory::Allocated && is_callers => Memory::Allocated,
            _ if is_callers => Memory::Program,
            _ => Memory::Library,
        };
        let worker = std::ptr::from_ref(worker).addr();
        objects.insert(at, Object { name: REQUEST, memory, worker, freed_by: None });
    });
}

/// Remembers a request that the program has asked for.
#[cold]
#[inline(never)]
pub(crate) fn add_allocated(request: *mut c_void, worker: &Worker) {
    if !checks() {
        return;
    }
    let worker = std::ptr::from_ref(worker).addr();
    let object = Object { name: REQUEST, memory: Memory::Allocated, worker, freed_by: None };
    with_objects(|objects| objects.insert(request.addr(), object));
}

/// Memory for a new handle, which is remembered.
pub(crate) fn new_place<T: Named>() -> Box<MaybeUninit<T>> {
    let mut place = Box::new_uninit();
    if !checks() {
        return place;
    }
    loop {
        let object = Object { name: T::NAME, memory: Memory::Library, worker: 0, freed_by: None };
        let is_new = with_objects(|objects| match objects.entry(place.as_ptr().addr()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(at) => {
                at.insert(object);
                true
            }
        });
        if is_new {
            return place;
        }
        // Something else had the address, and is to be told from this. The memory stays unused.
        Box::leak(place);
        place = Box::new_uninit();
    }
}

/// Checks a handle that is not an argument by itself.
pub(crate) fn handle<T: Named>(handle: *const T) {
    if checks() && !T::IS_STATIC {
        require(handle.addr(), T::NAME);
    }
}

/// Marks a handle as freed, and the requests of a worker with it.
pub(crate) fn remove<T: Named>(handle: *const T) {
    if !checks() {
        return;
    }
    require(handle.addr(), T::NAME);
    let by = FUNCTION.get();
    with_objects(|objects| {
        for (at, object) in objects {
            if *at == handle.addr() || object.worker == handle.addr() {
                object.freed_by.get_or_insert(by);
            }
        }
    });
}
