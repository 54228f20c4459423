//! Functions that print, to a stream of the C library.

use std::ffi::{c_char, c_int};
use std::fmt::Write as _;

use ::ucs::Status;
use ::ucs::config::{Detail, Source, print};

use crate::arg::StrPtr;
use crate::context::Context;
use crate::entry::invalid;
use crate::ep::Ep;
use crate::handle::checked;
use crate::worker::Worker;

/// Values of `ucs_config_print_flags_t`.
const PRINT_CONFIG: c_int = 1 << 0;
const PRINT_HEADER: c_int = 1 << 1;
const PRINT_DOC: c_int = 1 << 2;

/// Writes text to a stream. Refuses null.
/// # Safety
/// `stream` is null or open.
pub(crate) unsafe fn write_text(
    stream: *mut libc::FILE,
    text: &(impl AsRef<[u8]> + ?Sized),
) -> Result<(), Status> {
    let text = text.as_ref();
    if stream.is_null() {
        return Err(invalid("stream is null"));
    }
    // SAFETY: this function's contract.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    if written == text.len() { Ok(()) } else { Err(Status::IoError) }
}

/// Copies text to memory of the caller, cut and ended by zero.
/// # Safety
/// `to` is null or has room for `size` bytes.
pub(crate) unsafe fn fill_string(to: *mut c_char, size: usize, text: &(impl AsRef<[u8]> + ?Sized)) {
    let text = text.as_ref();
    if to.is_null() || size == 0 {
        return;
    }
    let len = text.len().min(size - 1);
    // SAFETY: this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len) };
    // SAFETY: as above.
    unsafe { to.add(len).write(0) };
}

/// Prints a configuration: what the flags name.
/// # Safety
/// `stream` is null or open.
pub(crate) unsafe fn print_config(
    stream: *mut libc::FILE,
    source: &Source,
    title: &str,
    flags: c_int,
) -> Result<(), Status> {
    let mut text = String::new();
    if flags & PRINT_HEADER != 0 && !title.is_empty() {
        _ = writeln!(text, "#\n# {title}\n#");
    }
    if flags & (PRINT_CONFIG | PRINT_DOC) != 0 {
        let detail = if flags & PRINT_DOC != 0 { Detail::Help } else { Detail::Values };
        for table in ucp::Context::tables() {
            print(&mut text, table, source, detail).map_err(|_| Status::NoMemory)?;
        }
        // Consumers read back what they have set.
        for name in source.unused_keys(&ucp::Context::tables()) {
            let value = source.lookup(name).map_or("", |(value, _)| value);
            _ = writeln!(text, "{name}={value}");
        }
    }
    // SAFETY: this function's contract.
    unsafe { write_text(stream, &text) }
}

entry! {
    /// Prints the resources of a context, one a line, as consumers parse them.
    fn ucp_context_print_info(context: *mut Context, stream: *mut libc::FILE) {
        let context = checked(context)?;
        let mut text = String::from("#\n# UCP context\n#\n");
        let all = context.context.resources().iter().chain(context.context.rma_only_resources());
        for (at, found) in all.clone().enumerate() {
            _ = writeln!(text, "#     component {at}  :  {}", found.tl);
        }
        for (at, found) in all.enumerate() {
            _ = writeln!(text, "# resource {at} : md {at} dev {at} flags -- {}/{}", found.tl, found.dev);
        }
        _ = writeln!(text, "#\n# memory: host\n#");
        // SAFETY: the caller's contract.
        unsafe { write_text(stream, &text) }
    }

    /// Prints a worker's counters.
    fn ucp_worker_print_info(worker: *mut Worker, stream: *mut libc::FILE) {
        let worker = checked(worker)?;
        let text = worker.with_worker(|plain| {
            let mut text = format!("#\n# UCP worker '{}'\n#\n#                 address: {}\n", worker.name, plain.address());
            for lane in plain.ifaces() {
                _ = writeln!(text, "#                    lane: {}/{}", lane.tl, lane.dev);
            }
            text.push_str("#\n");
            text
        })?;
        // SAFETY: the caller's contract.
        unsafe { write_text(stream, &text) }
    }

    /// Prints the transports of an endpoint.
    fn ucp_ep_print_info(ep: *mut Ep, stream: *mut libc::FILE) {
        let ep = checked(ep)?;
        let transports = ep.worker().with_worker(|_| ep.ep.protocols().transports())?;
        let mut text = String::from("#\n# UCP endpoint\n#\n");
        for (at, name) in transports.iter().enumerate() {
            _ = writeln!(text, "#                 lane[{at}]:  {name}");
        }
        text.push_str("#\n");
        // SAFETY: the caller's contract.
        unsafe { write_text(stream, &text) }
    }

    /// Prints what memory of a size would take.
    fn ucp_mem_print_info(size: StrPtr, context: *mut Context, stream: *mut libc::FILE) {
        let context = checked(context)?;
        let asked = size.text();
        let len = ::ucs::config::parse_size(&asked).and_then(|len| usize::try_from(len).ok());
        let mem = context.context.mem_alloc(len.ok_or_else(|| invalid("ucp_mem_print_info: not a size"))?, ucp::Access::all());
        let text = match mem {
            Ok(mem) => format!("# allocated {} bytes at {:p}\n", mem.len(), mem.as_ptr()),
            Err(error) => format!("# <failed to allocate {asked}: {error}>\n"),
        };
        // SAFETY: the caller's contract.
        unsafe { write_text(stream, &text) }
    }
}
