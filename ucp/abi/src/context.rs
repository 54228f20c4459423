//! Contexts, and what the library says of itself.

use std::ffi::{c_char, c_uint, c_void};

use ::ucs::Status;
use ucp::RequestParams;
use uct::api::OpenError;

use crate::arg::{AttrPtr, OutPtr, ParamsPtr, StrPtr};
use crate::config::Config;
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};
use crate::op::{PRIV_SIZE, REQUEST_SIZE};
use crate::types::{ContextAttr, LibAttr, NAME_MAX, Params, RequestHook, context_attr, params, thread_mode};

/// Release of UCX whose interface this is.
const VERSION: (c_uint, c_uint, c_uint) = (1, 23, 0);

/// `ucp_context_h`.
#[repr(C)]
pub(crate) struct Context {
    magic: Magic,
    pub(crate) context: ucp::Context,
    is_shared: bool,
    pub(crate) name: String,
    pub(crate) room: RequestUserArea,
}

/// The program's memory at each request: its length in bytes, and functions for its begin and end.
#[derive(Clone, Copy)]
pub(crate) struct RequestUserArea {
    pub size: usize,
    pub init: Option<RequestHook>,
    pub cleanup: Option<RequestHook>,
}

impl Handle for Context {
    const MAGIC: u32 = 0x7570_6378;
    const NAME: &'static str = "context";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

/// The text of a C string; empty for null.
/// # Safety
/// `at` is null or a C string.
pub(crate) unsafe fn text_of(at: *const c_char) -> String {
    // SAFETY: this function's contract.
    unsafe { StrPtr::new(at) }.text()
}

/// A name as C programs get it: cut, and ended by zero.
pub(crate) fn copy_name(name: &str) -> [c_char; NAME_MAX] {
    let mut out = [0; NAME_MAX];
    for (to, from) in out[..NAME_MAX - 1].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    out
}

/// Status of an error of opening.
pub(crate) fn open_status(error: &OpenError) -> Status {
    match error {
        OpenError::UnknownTransport { .. } | OpenError::UnknownDevice { .. } => Status::NoDevice,
        OpenError::Config(_) => Status::InvalidParam,
        OpenError::Environment(_) => Status::NoDevice,
        OpenError::Exhausted { .. } => Status::NoMemory,
        _ => Status::IoError,
    }
}

/// Memory behind each request: the two words of this library, then the program's.
fn request_params(RequestUserArea { size, init, cleanup }: RequestUserArea) -> RequestParams {
    // SAFETY: the hook gets the memory that the program asked for; it is called once for each block.
    let call = |hook: RequestHook, at: *mut u8| unsafe { hook(at.wrapping_add(PRIV_SIZE).cast::<c_void>()) };
    let mut room = RequestParams::bytes(PRIV_SIZE + size);
    if let Some(init) = init {
        room = room.on_init(move |at| call(init, at.as_ptr()));
    }
    if let Some(cleanup) = cleanup {
        room = room.on_cleanup(move |at| call(cleanup, at.as_ptr()));
    }
    room
}

fn new_context(from: ParamsPtr<Params>, config: *const Config) -> Result<Context, Status> {
    let from = from.fields("ucp_init")?;
    if from.mask() & params::FEATURES == 0 {
        return Err(invalid("ucp_init: features is missing"));
    }
    let room = RequestUserArea {
        size: field!(from, params::REQUEST_SIZE, request_size).unwrap_or(0),
        init: field!(from, params::REQUEST_INIT, request_init).flatten(),
        cleanup: field!(from, params::REQUEST_CLEANUP, request_cleanup).flatten(),
    };
    let is_shared = field!(from, params::MT_WORKERS_SHARED, mt_workers_shared).unwrap_or(0) != 0;
    let name = field!(from, params::NAME, name).map(|name| {
        // SAFETY: the program's name is a C string.
        unsafe { StrPtr::new(name) }.text()
    });
    let name = name.unwrap_or_default();
    let source = match config.is_null() {
        true => Config::read(StrPtr::NULL)?.source,
        false => checked(config)?.source.clone(),
    };
    crate::log::init(&source);
    let context = ucp::Context::configured(source).map_err(|error| {
        tracing::error!("{error}");
        open_status(&error)
    })?;
    let context = context.with_request_params(request_params(room));
    Ok(Context { magic: Magic::of::<Context>(), context, is_shared, name, room })
}

entry! {
    /// Makes a context.
    fn ucp_init_version(
        major: c_uint,
        minor: c_uint,
        params: ParamsPtr<Params>,
        config: *const Config,
        context: OutPtr<*mut Context>,
    ) -> CStatus {
        if context.is_null() {
            return Err(invalid("ucp_init_version: context is null"));
        }
        let made = new_context(params, config)?;
        if (major, minor) > (VERSION.0, VERSION.1) {
            let (ours, our_minor, _) = VERSION;
            tracing::warn!("the program is built for UCX {major}.{minor}; this library has the interface of {ours}.{our_minor}");
        }
        context.store(into_handle(made))
    }

    /// Frees a context.
    fn ucp_cleanup(context: *mut Context) {
        from_handle(context).map(drop)
    }

    /// Attributes of a context.
    fn ucp_context_query(context: *mut Context, attr: AttrPtr<ContextAttr>) -> CStatus {
        let context = checked(context)?;
        let attr = attr.fields("ucp_context_query")?;
        let mode = if context.is_shared { thread_mode::MULTI } else { thread_mode::SINGLE };
        answer!(attr, context_attr::REQUEST_SIZE, request_size = REQUEST_SIZE);
        answer!(attr, context_attr::THREAD_MODE, thread_mode = mode);
        // Memory of the host.
        answer!(attr, context_attr::MEMORY_TYPES, memory_types = 1);
        answer!(attr, context_attr::NAME, name = copy_name(&context.name));
        answer!(attr, context_attr::DEVICE_COUNTER_SIZE, device_counter_size = 0);
        Ok(())
    }

    /// Attributes of the library.
    fn ucp_lib_query(attr: AttrPtr<LibAttr>) -> CStatus {
        let attr = attr.fields("ucp_lib_query")?;
        answer!(attr, 1 << 0, max_thread_level = thread_mode::MULTI);
        Ok(())
    }

    /// Version of the interface.
    fn ucp_get_version(major: OutPtr<c_uint>, minor: OutPtr<c_uint>, release: OutPtr<c_uint>) {
        major.store(VERSION.0)?;
        minor.store(VERSION.1)?;
        release.store(VERSION.2)
    }
}

/// Version of the interface, as text.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucp_get_version_string() -> *const c_char {
    c"1.23.0".as_ptr()
}
